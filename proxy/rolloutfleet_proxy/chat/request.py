"""A typed parse of a chat completion request. Pure.

What can be honoured is read, in SGLang's words where it is a sampling parameter; what can't is a 400 that names
the parameter, never ignored in silence. The parameters are the OpenAI API's and, of SGLang's extensions, those
that change how tokens are drawn.

- *Ignored, because nothing that the client gets depends on them*: `metadata`, `prompt_cache_key`,
  `prompt_cache_options`, `prompt_cache_retention`, `safety_identifier`, `service_tier`, `store`, `user`, and a
  tool's `strict` (its schema is rendered, not enforced).
- *Refused unless neutral*: `audio`, `function_call`, `functions`, `logit_bias` (sglang-router 0.3.2 leaves it out
  of what it sends on, in silence), `modalities` beyond text, `moderation`, `n` beyond 1,
  `parallel_tool_calls: false`, `prediction`, `tool_choice` beyond auto and none, `verbosity`,
  `web_search_options`, tools that are no functions, content parts that are no text.
- *Unknown*: refused, by name. Unknown fields of a message are kept: they take part in matching (`messages`).
- `max_tokens` is the older name of `max_completion_tokens`; both may be given if they agree.
- `reasoning_effort` is a template argument of those chat formats that have one.
- `seed` and `response_format` are passed on; an engine honours a seed when it samples deterministically, and the
  gateway takes no negative one.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta as Rule
from msgspec import Struct

from rolloutfleet.errors import INVALID_JSON
from rolloutfleet_proxy.digests import digest16
from rolloutfleet_proxy.errors import ApiError, invalid, missing, unknown, unsupported
from rolloutfleet_proxy.turns.messages import TemplateArgs

MAX_DEPTH: Final = 64
"""Levels of objects and arrays in a free-form value: a tool's schema, template arguments, call arguments."""
MAX_STOPS: Final = 32
"""SGLang's own bound (`sampling/sampling_params.py`)."""
MAX_TOP_LOGPROBS: Final = 20
"""The OpenAI API's own bound."""

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_ANY_OBJECT_SCHEMA = '{"type":"object"}'

_Fraction = Annotated[float, Rule(ge=0, le=1)]
_Penalty = Annotated[float, Rule(ge=-2, le=2)]
_TokenId = Annotated[int, Rule(ge=0, le=_MAX_INT32)]
_TokenCount = Annotated[int, Rule(ge=1, le=_MAX_INT32)]
_StopString = Annotated[str, Rule(min_length=1, max_length=1000)]


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A request that can be honoured.

    `messages` and `template.tools` are as sent: `messages.conversation` and the chat format read them.
    `template.tools` is None for an empty list and for `tool_choice: "none"`, whose model is told of no tools.
    `sampling` has SGLang's names and lacks `max_new_tokens`, which depends on the prompt and the round.
    `stops` are the stop strings, which the answer's text ends before; they are in `sampling` too.
    """

    messages: list[dict[str, Any]]
    model: str | None
    template: TemplateArgs
    max_tokens: int | None
    sampling: dict[str, Any]
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int


class _StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Body(Struct, forbid_unknown_fields=True):
    messages: Annotated[list[dict[str, Any]], Rule(min_length=1)]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None

    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Rule(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    max_completion_tokens: _TokenCount | None = None
    max_tokens: _TokenCount | None = None

    temperature: Annotated[float, Rule(ge=0, le=100)] | None = None
    top_p: Annotated[float, Rule(gt=0, le=1)] | None = None
    top_k: Annotated[int, Rule(ge=-1, le=_MAX_INT32)] | None = None
    min_p: _Fraction | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Rule(gt=0, le=2)] | None = None
    seed: Annotated[int, Rule(ge=0, le=_MAX_INT64)] | None = None
    min_tokens: Annotated[int, Rule(ge=0, le=_MAX_INT32)] | None = None
    ignore_eos: bool | None = None
    stop: Annotated[list[_StopString], Rule(max_length=MAX_STOPS)] | _StopString | None = None
    stop_token_ids: Annotated[list[_TokenId], Rule(max_length=1024)] | None = None

    n: Literal[1] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    logit_bias: Annotated[dict[str, float], Rule(max_length=0)] | None = None
    moderation: None = None
    prediction: None = None
    verbosity: None = None
    web_search_options: None = None

    metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None


_SAMPLING = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("repetition_penalty", "repetition_penalty"),
    ("seed", "sampling_seed"),
    ("min_tokens", "min_new_tokens"),
    ("ignore_eos", "ignore_eos"),
    ("stop_token_ids", "stop_token_ids"),
)
"""Our name, SGLang's name."""

_decode = msgspec.json.Decoder(_Body).decode
_ERROR = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `(?P<field>[^`]*)`$", re.DOTALL)


def parse_chat(body: bytes) -> ChatRequest:
    """Read a request's body once. Raises ApiError 400 that names the parameter at fault."""
    try:
        parsed = _decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, INVALID_JSON, f"The body is no JSON that can be read: {error}.") from None

    for index, message in enumerate(parsed.messages):
        # The plain message is by far the most common one.
        if len(message) == 2 and type(message.get("content")) is str and message.get("role") in _PLAIN_ROLES:
            continue
        _check_message(message, at=f"messages[{index}]")
    stops = _stops(parsed.stop)
    return ChatRequest(
        messages=parsed.messages,
        model=parsed.model,
        template=TemplateArgs(_tools(parsed), _template_kwargs(parsed)),
        max_tokens=_max_tokens(parsed),
        sampling=_sampling(parsed, stops),
        stops=stops,
        stream=parsed.stream or False,
        include_usage=_include_usage(parsed),
        logprobs=parsed.logprobs or False,
        top_logprobs=_top_logprobs(parsed),
    )


def body_digest(body: bytes) -> bytes:
    """16 bytes that tell one request body from another, for retries."""
    return digest16(body)


# Messages

# A tuple: a role may be anything, also what has no hash.
_PLAIN_ROLES = ("user", "assistant", "system", "developer")
_TEXT_FIELDS = ("reasoning_content", "reasoning", "refusal", "name")
_KNOWN_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id", "audio", "function_call", *_TEXT_FIELDS})
_PART_FIELDS = frozenset({"type", "text", "cache_control"})


def _check_message(message: dict[str, Any], *, at: str) -> None:
    role = message.get("role")
    if role is None:
        raise missing(f"{at}.role")
    if role == "function":
        raise unsupported(f"{at}.role", "use tool messages instead of function messages.")
    if role != "tool" and role not in _PLAIN_ROLES:
        raise invalid(f"{at}.role", "A role is one of system, developer, user, assistant and tool.")

    _check_content(message.get("content"), role=role, at=f"{at}.content")
    for field in _TEXT_FIELDS:
        if not isinstance(message.get(field), str | None):
            raise invalid(f"{at}.{field}", f"{field} is a string.")
    for field in ("audio", "function_call"):
        if message.get(field) is not None:
            raise unsupported(f"{at}.{field}", "there is nothing here that could render it.")
    if role == "tool":
        _check_tool_call_id(message.get("tool_call_id"), at=f"{at}.tool_call_id")
    elif message.get("tool_call_id") is not None:
        raise invalid(f"{at}.tool_call_id", "Only a tool message answers a tool call.")
    _check_tool_calls(message.get("tool_calls"), role=role, at=f"{at}.tool_calls")
    for field in message.keys() - _KNOWN_FIELDS:
        _check_depth(message[field], at=f"{at}.{field}")


def _check_content(content: Any, *, role: str, at: str) -> None:
    if type(content) is str:
        return
    if content is None:
        if role != "assistant":
            raise missing(at)
        return
    if type(content) is not list:
        raise invalid(at, "Content is a string or a list of text parts.")
    for index, part in enumerate(content):
        _check_part(part, at=f"{at}[{index}]")


def _check_part(part: Any, *, at: str) -> None:
    if type(part) is not dict:
        raise invalid(at, "A content part is an object.")
    kind = part.get("type")
    if kind is None:
        raise missing(f"{at}.type")
    if type(kind) is not str:
        raise invalid(f"{at}.type", "A content part's type is a string.")
    if kind != "text":
        raise unsupported(f"{at}.type", f"only text parts can be rendered, not {kind[:40]!r}.")
    if type(part.get("text")) is not str:
        raise invalid(f"{at}.text", "A text part has a string as its text.")
    for field in part.keys() - _PART_FIELDS:
        raise unknown(f"{at}.{field}")
    _check_depth(part.get("cache_control"), at=f"{at}.cache_control")


def _check_tool_call_id(value: Any, *, at: str) -> None:
    if value is None:
        raise missing(at)
    if type(value) is not str or not value:
        raise invalid(at, "tool_call_id is the id of the tool call that this message answers.")


def _check_tool_calls(calls: Any, *, role: str, at: str) -> None:
    if calls is None:
        return
    if type(calls) is not list:
        raise invalid(at, "tool_calls is a list.")
    if calls and role != "assistant":
        raise invalid(at, "Only an assistant message makes tool calls.")
    for index, call in enumerate(calls):
        _check_tool_call(call, at=f"{at}[{index}]")


def _check_tool_call(call: Any, *, at: str) -> None:
    if type(call) is not dict:
        raise invalid(at, "A tool call is an object.")
    if call.get("type", "function") != "function":
        raise unsupported(f"{at}.type", "only functions can be called.")
    if not isinstance(call.get("id"), str | None):
        raise invalid(f"{at}.id", "A tool call's id is a string.")
    function = _named_function(call, of="tool call", at=f"{at}.function")
    _check_arguments(function.get("arguments"), at=f"{at}.function.arguments")
    for field in call.keys() - {"id", "type", "function"}:
        _check_depth(call[field], at=f"{at}.{field}")
    for field in function.keys() - {"name", "arguments"}:
        _check_depth(function[field], at=f"{at}.function.{field}")


def _named_function(owner: dict[str, Any], *, of: str, at: str) -> dict[str, Any]:
    """The function that a tool or a call of one names."""
    function = owner.get("function")
    if function is None:
        raise missing(at)
    if type(function) is not dict:
        raise invalid(at, f"A {of}'s function is an object.")
    name = function.get("name")
    if name is None:
        raise missing(f"{at}.name")
    if type(name) is not str or not name:
        raise invalid(f"{at}.name", "A function's name is a string.")
    return function


def _check_arguments(arguments: Any, *, at: str) -> None:
    """A string, which need be no JSON (a model wrote it), or an object, as some agents send it back."""
    if arguments is None or type(arguments) is dict:
        _check_depth(arguments, at=at)
    elif type(arguments) is not str:
        raise invalid(at, "Arguments are a string of JSON.")
    elif arguments.count("[") + arguments.count("{") > MAX_DEPTH:
        # The chat formats parse it, so it is held to the same depth as the body.
        try:
            value = msgspec.json.decode(arguments)
        except RecursionError:
            raise _too_deep(at) from None
        except ValueError:
            return
        _check_depth(value, at=at)


# Tools and templates


def _tools(parsed: _Body) -> list[dict[str, Any]] | None:
    for index, tool in enumerate(parsed.tools or ()):
        _check_tool(tool, at=f"tools[{index}]")
    choice = parsed.tool_choice
    if choice not in (None, "auto", "none"):
        if isinstance(choice, dict) or choice == "required":
            raise unsupported("tool_choice", "only auto and none can be honoured.")
        raise invalid("tool_choice", "tool_choice is auto or none.")
    if parsed.parallel_tool_calls is False:
        raise unsupported("parallel_tool_calls", "the model is free to make several calls.")
    return None if choice == "none" else parsed.tools or None


def _check_tool(tool: dict[str, Any], *, at: str) -> None:
    kind = tool.get("type")
    if kind is None:
        raise missing(f"{at}.type")
    if kind != "function":
        raise unsupported(f"{at}.type", "only functions are tools here.")
    function = _named_function(tool, of="tool", at=f"{at}.function")
    if not isinstance(function.get("description"), str | None):
        raise invalid(f"{at}.function.description", "A function's description is a string.")
    if not isinstance(function.get("parameters"), dict | None):
        raise invalid(f"{at}.function.parameters", "A function's parameters are a JSON schema.")
    _check_depth(tool, at=at)


def _template_kwargs(parsed: _Body) -> dict[str, Any] | None:
    kwargs = parsed.chat_template_kwargs
    _check_depth(kwargs, at="chat_template_kwargs")
    effort = parsed.reasoning_effort
    if effort is None:
        return kwargs or None
    if kwargs and kwargs.get("reasoning_effort", effort) != effort:
        raise invalid("reasoning_effort", "chat_template_kwargs has another reasoning_effort.")
    return {**(kwargs or {}), "reasoning_effort": effort}


def _check_depth(value: Any, *, at: str) -> None:
    """Level by level, so that a hostile value costs neither stack nor more than its size."""
    level = [value] if type(value) in (dict, list) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep(at)
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]


def _too_deep(at: str) -> ApiError:
    return invalid(at, f"It is nested deeper than {MAX_DEPTH} levels.")


# Sampling and the answer's form


def _max_tokens(parsed: _Body) -> int | None:
    newer, older = parsed.max_completion_tokens, parsed.max_tokens
    if newer is not None and older is not None and newer != older:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ; give max_completion_tokens.")
    limit = older if newer is None else newer
    if limit is not None and parsed.min_tokens is not None and parsed.min_tokens > limit:
        raise invalid("min_tokens", f"min_tokens is more than the limit of {limit} tokens.")
    return limit


def _stops(stop: list[str] | str | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _sampling(parsed: _Body, stops: tuple[str, ...]) -> dict[str, Any]:
    sampling = {}
    for name, theirs in _SAMPLING:
        value = getattr(parsed, name)
        if value is not None:
            sampling[theirs] = value
    if parsed.top_k == 0:
        raise invalid("top_k", "top_k is -1 (off) or at least 1.")
    if stops:
        sampling["stop"] = list(stops)
    if parsed.response_format is not None:
        schema = _json_schema(parsed.response_format)
        if schema is not None:
            sampling["json_schema"] = schema
    return sampling


def _json_schema(response_format: dict[str, Any]) -> str | None:
    """SGLang's `json_schema` sampling parameter, as its own chat route makes it (`serving_chat.py`)."""
    kind = response_format.get("type")
    if kind is None:
        raise missing("response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT_SCHEMA
    if kind != "json_schema":
        raise unsupported("response_format.type", "it is one of text, json_object and json_schema.")
    given = response_format.get("json_schema")
    if type(given) is not dict:
        raise invalid("response_format.json_schema", "It is an object with a schema.")
    schema = given.get("schema")
    if type(schema) is not dict:
        raise invalid("response_format.json_schema.schema", "It is a JSON schema.")
    _check_depth(schema, at="response_format.json_schema.schema")
    return msgspec.json.encode(schema).decode()


def _include_usage(parsed: _Body) -> bool:
    options = parsed.stream_options
    if options is None:
        return False
    if not parsed.stream:
        raise invalid("stream_options", "stream_options is for streams only.")
    return options.include_usage or False


def _top_logprobs(parsed: _Body) -> int:
    if parsed.top_logprobs and not parsed.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true.")
    return parsed.top_logprobs or 0


def _refused(error: str) -> ApiError:
    """Name the parameter from the decoder's own words: `what - at `$.path``."""
    found = _ERROR.match(error)
    what, path = (found["what"], found["path"] or "") if found else (error, "")
    path = path.removesuffix("[...]")
    field = _FIELD.match(what)
    if field is not None:
        param = f"{path}.{field['field']}" if path else field["field"]
        return missing(param) if "missing" in what else unknown(param[:200])
    if not path:
        return ApiError(400, INVALID_JSON, f"The body is no chat request: {what}.")
    if what.startswith(("Invalid enum value", "Expected `null`", "Expected `object` of length <= 0")):
        return unsupported(path, "this value can't be honoured.")
    return invalid(path, f"Invalid value for {path}: {what}.")
