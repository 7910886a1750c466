"""A typed parse of a chat completion request. Pure.

What is honoured is read, in SGLang's words where it is a sampling parameter. The parameters are the OpenAI API's and,
of SGLang's extensions, those that change how tokens are drawn. Agents come as they are: what changes nothing that is
promised is taken and named (`TurnRequest.ignored`), and only what would make the answer or its capture another thing
than was asked for is a 400 that names the parameter. Strictly read, what would be named is a 400 too.

- *Without effect, as the OpenAI API has it too*: `metadata`, `prompt_cache_key`, `prompt_cache_options`,
  `prompt_cache_retention`, `safety_identifier`, `service_tier`, `store`, `user`, and a tool's `strict` (its schema is
  rendered, not enforced).
- *Held to by a grammar*: `tool_choice` beyond auto and none, `parallel_tool_calls: false`. Where the chat format has no
  such grammar, where the engines take none, and where the request has its own (`regex`, `ebnf`, a structural tag), they
  are wishes that nothing enforces, and named; so is `parallel_tool_calls` beside `min_tokens`. Where a call must come
  there is no text for a `response_format` to hold; where one may come, a reply is calls or JSON.
- *Ignored, and named*: `moderation`, `prediction`, `verbosity`, `web_search_options`, `seed: -1`, a
  `reasoning_effort` that the chat format doesn't take, and every field that is not known here: those of other providers
  (`provider`, `transforms`, `usage`, `thinking`), of vLLM, and those of SGLang that would override the capture (`rid`,
  `skip_special_tokens`, `stream_interval`, …) or run code in the engine (`custom_logit_processor`).
- *Refused unless neutral*: `audio`, `function_call`, `functions`, `modalities` beyond text, `n` beyond 1, tools that
  are no functions, content parts that are neither text nor a refusal of the assistant's (but see `images`).
- `return_token_ids` is vLLM's and SGLang's (`encoder`).
- Unknown fields of a message are kept: some chat formats write some (`messages`).
- `max_tokens` is the older name of `max_completion_tokens`; both may be given if they agree.
- `seed` and `response_format` are passed on; an engine honours a seed when it samples deterministically.
- `regex`, `ebnf` and `structural_tag` are SGLang's; one grammar holds a turn, so they exclude each other and a
  `response_format` with one. SGLang's other own fields are in `engine_fields`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta as Rule
from msgspec.structs import replace

from rolloutfleet_proxy.dialects.base import MAX_INT32, Reading, TurnRequest
from rolloutfleet_proxy.dialects.bodies import BodyReader, OpenAIBody, TokenCount
from rolloutfleet_proxy.dialects.depth import check_depth, check_json
from rolloutfleet_proxy.dialects.images import Images
from rolloutfleet_proxy.dialects.mistakes import kind_of, text_of
from rolloutfleet_proxy.dialects.openai_chat import engine_fields, grammars
from rolloutfleet_proxy.dialects.openai_chat.tool_choice import choice_of, named_function
from rolloutfleet_proxy.dialects.tool_choice import Choice, held_calls
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from rolloutfleet_proxy.domain.messages import EFFORTS, TemplateArgs
from rolloutfleet_proxy.engine.generation import grammar_of

_MAX_INT64 = 2**63 - 1
_ANY_SEED = -1
"""What several frameworks send for none."""

_Grammar = Annotated[str, Rule(min_length=1)]


class ChatRequest(TurnRequest, frozen=True, kw_only=True):
    """A request that can be honoured. `messages` and `template.tools` are as sent."""

    names: ClassVar = {"json_schema": "response_format.json_schema.schema"}

    include_usage: bool


class _ChatBody(OpenAIBody):
    messages: Annotated[list[dict[str, Any]], Rule(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None

    stream_options: dict[str, Any] | None = None
    logprobs: bool | None = None

    max_completion_tokens: TokenCount | None = None
    max_tokens: TokenCount | None = None

    seed: Annotated[int, Rule(ge=_ANY_SEED, le=_MAX_INT64)] | None = None
    min_tokens: Annotated[int, Rule(ge=0, le=MAX_INT32)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[engine_fields.TokenId], Rule(max_length=1024)] | None = None
    regex: _Grammar | None = None
    ebnf: _Grammar | None = None
    structural_tag: grammars.Tag | None = None
    logit_bias: engine_fields.Biases | None = None
    stop_regex: engine_fields.Patterns | None = None
    custom_params: engine_fields.CustomParams | None = None

    n: Literal[1] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None

    prediction: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    metadata: Any = None
    store: Any = None
    user: Any = None


_SAMPLING = (
    ("seed", "sampling_seed"),
    ("min_tokens", "min_new_tokens"),
    ("ignore_eos", "ignore_eos"),
    ("stop_token_ids", "stop_token_ids"),
)
"""The API's name, SGLang's name."""

_INSTEAD = {
    "n": "give 1, or leave it out.",
    "modalities": "give text alone, or leave it out.",
    "function_call": "give tool_choice instead.",
    "functions": "give tools instead.",
}
_bodies = BodyReader(
    _ChatBody,
    unused=("moderation", "prediction", "verbosity", "web_search_options"),
    instead=_INSTEAD,
)


def parse_chat(body: bytes, reading: Reading) -> ChatRequest:
    """Read a request's body once. Raises DomainError that names the parameter at fault."""
    ignored: list[str] = []
    parsed = _bodies.read(body, reading, ignored)
    images = Images(replaced=reading.replaces_images)
    for index, message in enumerate(parsed.messages):
        # The plain message is by far the most common one.
        if len(message) == 2 and type(message.get("content")) is str and message.get("role") in _PLAIN_ROLES:
            continue
        _check_message(message, ignored, images, at=f"messages[{index}]")
    choice = _choice(parsed)
    stops = parsed.stops
    sampling = _sampling(parsed, stops, reading, ignored)
    if parsed.min_tokens and choice.wishes == ("parallel_tool_calls",):
        # Few ask for that themselves: frameworks send it with every call.
        reading = replace(reading, holds_calls=False)
    calls = held_calls(choice, sampling, reading, ignored)
    if parsed.min_tokens and (calls is not None or grammar_of(sampling) is not None):
        # SGLang rules the end tokens out until then, and a grammar at its end all others: it answers with a 500.
        raise InvalidParameter("min_tokens", "A grammar says where the answer ends, and min_tokens too: keep one.")
    request = ChatRequest(
        messages=parsed.messages,
        model=parsed.model,
        template=TemplateArgs(choice.shown, _template_kwargs(parsed, reading, ignored)),
        calls=calls,
        max_tokens=_max_tokens(parsed),
        sampling=sampling,
        stops=stops,
        stream=parsed.stream or False,
        include_usage=_include_usage(parsed, ignored),
        logprobs=parsed.logprobs or False,
        top_logprobs=_top_logprobs(parsed),
        token_ids=parsed.return_token_ids or False,
        ignored=tuple(ignored),
        placeholders=images.count,
        images=images.digest,
    )
    reading.check_ignored(ignored)
    return request


# Messages

# A tuple: a role may be anything, also what has no hash.
_PLAIN_ROLES = ("user", "assistant", "system", "developer")
_TEXT_FIELDS = ("reasoning_content", "reasoning", "refusal", "name")
_KNOWN_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id", "audio", "function_call", *_TEXT_FIELDS})
_PART_FIELDS = frozenset({"type", "text", "cache_control"})
_IMAGE = "image_url"
_REFUSAL = "refusal"
_ANSWERS_CALL = "tool_call_id is the id of the tool call that this message answers."


def _check_message(message: dict[str, Any], ignored: list[str], images: Images, *, at: str) -> None:
    role = message.get("role")
    if role is None:
        raise MissingParameter(f"{at}.role")
    if role == "function":
        raise UnsupportedParameter(f"{at}.role", "use tool messages instead of function messages.")
    if role != "tool" and role not in _PLAIN_ROLES:
        raise InvalidParameter(f"{at}.role", "A role is one of system, developer, user, assistant and tool.")

    _check_content(message.get("content"), ignored, images, role=role, at=f"{at}.content")
    for field in _TEXT_FIELDS:
        if not isinstance(message.get(field), str | None):
            raise InvalidParameter(f"{at}.{field}", f"{field} is a string.")
    for field in ("audio", "function_call"):
        if message.get(field) is not None:
            raise UnsupportedParameter(f"{at}.{field}", "there is nothing here that could render it.")
    if role == "tool":
        text_of(message, "tool_call_id", at=at, rule=_ANSWERS_CALL)
    elif message.get("tool_call_id") is not None:
        raise InvalidParameter(f"{at}.tool_call_id", "Only a tool message answers a tool call.")
    _check_tool_calls(message.get("tool_calls"), role=role, at=f"{at}.tool_calls")
    for field in message.keys() - _KNOWN_FIELDS:
        check_depth(message[field], at=f"{at}.{field}")


def _check_content(content: Any, ignored: list[str], images: Images, *, role: str, at: str) -> None:
    """An image, and a refusal of the assistant's, is replaced in its place."""
    if type(content) is str:
        return
    if content is None:
        if role != "assistant":
            raise MissingParameter(at)
        return
    if type(content) is not list:
        raise InvalidParameter(at, "Content is a string or a list of text parts.")
    for index, part in enumerate(content):
        where = f"{at}[{index}]"
        kind = part.get("type") if type(part) is dict else None
        text = None
        if kind == _IMAGE:
            text = images.text(part, _IMAGE, dict, str, at=where)
        elif kind == _REFUSAL and role == "assistant":
            text = text_of(part, _REFUSAL, at=where)
        if text is not None:
            others = {name: value for name, value in part.items() if name != kind}
            part = content[index] = {**others, "type": "text", "text": text}
        _check_part(part, ignored, at=where)


def _check_part(part: Any, ignored: list[str], *, at: str) -> None:
    kind = kind_of(part, what="A content part", at=at)
    if kind != "text":
        raise UnsupportedParameter(f"{at}.type", f"only text parts can be rendered, not {kind[:40]!r}.")
    if type(part.get("text")) is not str:
        raise InvalidParameter(f"{at}.text", "A text part has a string as its text.")
    for field, value in part.items():
        if field not in _PART_FIELDS:
            check_depth(value, at=f"{at}.{field}")
            if value is not None:
                ignored.append(f"{at}.{field}")
    check_depth(part.get("cache_control"), at=f"{at}.cache_control")


def _check_tool_calls(calls: Any, *, role: str, at: str) -> None:
    if calls is None:
        return
    if type(calls) is not list:
        raise InvalidParameter(at, "tool_calls is a list.")
    if calls and role != "assistant":
        raise InvalidParameter(at, "Only an assistant message makes tool calls.")
    for index, call in enumerate(calls):
        _check_tool_call(call, at=f"{at}[{index}]")


def _check_tool_call(call: Any, *, at: str) -> None:
    if type(call) is not dict:
        raise InvalidParameter(at, "A tool call is an object.")
    if call.get("type") not in (None, "function"):
        raise UnsupportedParameter(f"{at}.type", "only functions can be called.")
    if not isinstance(call.get("id"), str | None):
        raise InvalidParameter(f"{at}.id", "A tool call's id is a string.")
    function = named_function(call, of="tool call", at=f"{at}.function")
    _check_arguments(function.get("arguments"), at=f"{at}.function.arguments")
    for field in call.keys() - {"id", "type", "function"}:
        check_depth(call[field], at=f"{at}.{field}")
    for field in function.keys() - {"name", "arguments"}:
        check_depth(function[field], at=f"{at}.function.{field}")


def _check_arguments(arguments: Any, *, at: str) -> None:
    """A string, which need be no JSON (a model wrote it), or an object, as some agents send it back."""
    if arguments is None or type(arguments) is dict:
        check_depth(arguments, at=at)
    elif type(arguments) is not str:
        raise InvalidParameter(at, "Arguments are a string of JSON.")
    else:
        check_json(arguments, at=at)


# Tools and templates


def _choice(parsed: _ChatBody) -> Choice:
    tools = parsed.tools or []
    for index, tool in enumerate(tools):
        _check_tool(tool, at=f"tools[{index}]")
    return choice_of(parsed.tool_choice, parsed.parallel_tool_calls, tools)


def _check_tool(tool: dict[str, Any], *, at: str) -> None:
    kind = tool.get("type")
    if kind is None:
        raise MissingParameter(f"{at}.type")
    if kind != "function":
        raise UnsupportedParameter(f"{at}.type", "only functions are tools here.")
    function = named_function(tool, of="tool", at=f"{at}.function")
    if not isinstance(function.get("description"), str | None):
        raise InvalidParameter(f"{at}.function.description", "A function's description is a string.")
    if not isinstance(function.get("parameters"), dict | None):
        raise InvalidParameter(f"{at}.function.parameters", "A function's parameters are a JSON schema.")
    check_depth(tool, at=at)


def _template_kwargs(parsed: _ChatBody, reading: Reading, ignored: list[str]) -> dict[str, Any] | None:
    check_depth(parsed.chat_template_kwargs, at="chat_template_kwargs")
    effort = parsed.reasoning_effort
    is_formats_own = bool(reading.efforts) and effort not in EFFORTS  # Such as `no_think`; others are a 400 there.
    if effort is not None and effort not in reading.efforts and not is_formats_own:
        ignored.append("reasoning_effort")
        effort = None
    return parsed.template_kwargs(effort, at="reasoning_effort")


# Sampling and the answer's form

_STREAM_OPTIONS = ("include_usage", "include_obfuscation")


def _max_tokens(parsed: _ChatBody) -> int | None:
    newer, older = parsed.max_completion_tokens, parsed.max_tokens
    if newer is not None and older is not None and newer != older:
        raise InvalidParameter("max_tokens", "max_tokens and max_completion_tokens differ; give max_completion_tokens.")
    limit = older if newer is None else newer
    if limit is not None and parsed.min_tokens is not None and parsed.min_tokens > limit:
        raise InvalidParameter("min_tokens", f"min_tokens is more than the limit of {limit} tokens.")
    return limit


def _sampling(parsed: _ChatBody, stops: tuple[str, ...], reading: Reading, ignored: list[str]) -> dict[str, Any]:
    sampling = parsed.sampling()
    for name, theirs in _SAMPLING:
        value = getattr(parsed, name)
        if value is not None:
            sampling[theirs] = value
    if parsed.seed == _ANY_SEED:
        del sampling["sampling_seed"]
        ignored.append("seed")
    if stops:
        sampling["stop"] = list(stops)
    if parsed.stop_regex:
        sampling["stop_regex"] = engine_fields.stop_patterns(parsed.stop_regex)
    if parsed.logit_bias:
        sampling["logit_bias"] = engine_fields.logit_bias(parsed.logit_bias, vocabulary_size=reading.vocabulary_size)
    if parsed.custom_params:
        sampling["custom_params"] = engine_fields.custom_params(parsed.custom_params)
    return sampling | grammars.of(
        regex=parsed.regex,
        ebnf=parsed.ebnf,
        structural_tag=parsed.structural_tag,
        response_format=parsed.response_format,
    )


def _include_usage(parsed: _ChatBody, ignored: list[str]) -> bool:
    options = parsed.stream_options
    if options is None:
        return False
    if not parsed.stream:
        raise InvalidParameter("stream_options", "stream_options is for streams only.")
    for name, value in options.items():
        if name not in _STREAM_OPTIONS:
            ignored.append(f"stream_options.{name}")
        elif not isinstance(value, bool | None):
            raise InvalidParameter(f"stream_options.{name}", f"{name} is true or false.")
    return options.get("include_usage") or False


def _top_logprobs(parsed: _ChatBody) -> int:
    if parsed.top_logprobs and not parsed.logprobs:
        raise InvalidParameter("top_logprobs", "top_logprobs needs logprobs to be true.")
    return parsed.top_logprobs or 0
