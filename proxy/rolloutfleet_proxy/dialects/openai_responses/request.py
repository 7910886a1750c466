"""A typed parse of a request to the Responses API. Pure.

What is honoured is read as in chat requests, and so is what is taken without effect and named
(`openai_chat.request`). Beside the API's own parameters, SGLang's for sampling are taken that its own route takes, and
`chat_template_kwargs`.

- *`instructions`* are a system message in front, of this call alone.
- *`previous_response_id`* names the turn that the input goes on from (`TurnRequest.follows`),
  and `item_reference` an item of an earlier one (`TurnRequest.refers`).
- *`return_token_ids`*, as in chat, asks for the ids of prompt and output (`objects.with_token_ids`).
- *`max_output_tokens`* is an upper bound, cut to what the context leaves.
- *Without effect here, or as the API has it*: `client_metadata`, `include` but for log-probabilities,
  `max_tool_calls` (of server tools), `metadata`, `prompt_cache_*`, `reasoning.summary`, `safety_identifier`,
  `service_tier`, `store`, `stream_options`, `truncation: disabled`, `user`.
- *Ignored, and named*: `context_management`, `moderation`, `truncation: auto`, `text.verbosity`, further fields of
  `reasoning`, tools that servers run (`tools`), and every field that is not known here.
- *Refused by name*: `background`, `conversation`, `prompt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta as Rule
from msgspec import Struct
from msgspec.structs import asdict

from rolloutfleet_proxy.dialects.base import Reading, TurnRequest
from rolloutfleet_proxy.dialects.bodies import BodyReader, OpenAIBody, TokenCount
from rolloutfleet_proxy.dialects.depth import check_depth
from rolloutfleet_proxy.dialects.images import Images
from rolloutfleet_proxy.dialects.openai_responses.items import read_input
from rolloutfleet_proxy.dialects.openai_responses.references import filled
from rolloutfleet_proxy.dialects.openai_responses.tools import Declared, read_choice, read_tools
from rolloutfleet_proxy.dialects.tool_choice import held_calls
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.domain.turn import Answer

PREFIX: Final = "resp_"
"""A response's id is this and its turn's."""

_ANY_OBJECT = '{"type":"object"}'
_LOGPROBS = "message.output_text.logprobs"
_MOST_METADATA, _LONGEST_METADATA = 16, 512
_LONGEST_USER = 512
_MOST_REPEATED: Final = {"text": 1 << 20, "tool_choice": 1 << 20, "reasoning": 1 << 12}
"""Bytes of JSON of what answers repeat as it is."""


class Echo(Struct, frozen=True, kw_only=True):
    """What an answer repeats of its request, as it was sent; in the order in which answers have it."""

    TEXT: ClassVar[Mapping[str, Any]] = {"format": {"type": "text"}}

    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: Mapping[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: Mapping[str, Any] | None = None
    temperature: float | None = None
    text: Mapping[str, Any] | None = None
    tool_choice: Any = "auto"
    tools: list[Any] = []
    top_logprobs: int = 0
    top_p: float | None = None
    user: str | None = None


class ResponsesRequest(TurnRequest, frozen=True, kw_only=True):
    """A request that can be honoured."""

    names: ClassVar = {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "stops": "stop",
        "json_schema": "text.format.schema",
        "follows": "previous_response_id",
    }
    max_tokens_is_upper_bound: ClassVar = True

    echo: Echo
    declared: Mapping[str, Declared]
    """The tools that are no plain functions, by the names that the model knows."""

    def filled(self, answers: Mapping[str, Answer]) -> list[Message]:
        return filled(self.messages, answers)

    def kept(self, output: Message) -> dict[str, Any] | None:
        """What a response that is asked for later needs, beside its turn."""
        called = {call["function"]["name"] for call in output.get("tool_calls") or ()}
        kept: dict[str, Any] = {
            "model": self.model,
            "metadata": self.echo.metadata,
            "previous_response_id": self.echo.previous_response_id,
            "declared": {name: asdict(tool) for name, tool in self.declared.items() if name in called},
        }
        return {name: value for name, value in kept.items() if value} or None


class _ResponsesBody(OpenAIBody):
    input: str | list[Any]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Any] | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None

    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    truncation: str | None = None
    user: Annotated[str, Rule(max_length=_LONGEST_USER)] | None = None

    max_output_tokens: TokenCount | None = None

    background: Any = None
    conversation: Any = None
    prompt: Any = None

    context_management: Any = None

    client_metadata: Any = None
    max_tool_calls: Any = None
    stream_options: Any = None


_REFUSED = {
    "background": "a response is made while its caller waits.",
    "conversation": "give previous_response_id, or the whole input.",
    "prompt": "give instructions and input.",
}

_encode = msgspec.json.Encoder().encode
_bodies = BodyReader(_ResponsesBody, unused=("context_management", "moderation"))


def parse_responses(body: bytes, reading: Reading) -> ResponsesRequest:
    """Read a request's body once. Raises DomainError that names the parameter at fault."""
    ignored: list[str] = []
    parsed = _read(body, reading, ignored)
    images = Images(replaced=reading.replaces_images)
    messages, refers = read_input(parsed.input, ignored, images)
    if not messages:
        raise InvalidParameter("input", "There must be an item at least.")
    if parsed.instructions:
        messages.insert(0, {"role": "system", "content": parsed.instructions})
    tools = read_tools(parsed.tools or (), ignored)
    choice = read_choice(parsed.tool_choice, parsed.parallel_tool_calls, tools)
    stops = parsed.stops
    sampling = _sampling(parsed, stops, ignored)
    calls = held_calls(choice, sampling, reading, ignored)
    logprobs = bool(parsed.top_logprobs) or _LOGPROBS in (parsed.include or ())
    request = ResponsesRequest(
        messages=messages,
        model=parsed.model,
        template=TemplateArgs(choice.shown, _template_kwargs(parsed, reading, ignored)),
        calls=calls,
        max_tokens=parsed.max_output_tokens,
        sampling=sampling,
        stops=stops,
        stream=parsed.stream or False,
        logprobs=logprobs,
        top_logprobs=parsed.top_logprobs or 0,
        token_ids=parsed.return_token_ids or False,
        ignored=tuple(ignored),
        placeholders=images.count,
        images=images.digest,
        follows=None if parsed.previous_response_id is None else turn_of(parsed.previous_response_id),
        refers=refers,
        own_messages=1 if parsed.instructions else 0,
        echo=_echo(parsed),
        declared=tools.declared,
    )
    reading.check_ignored(ignored)
    return request


def turn_of(response_id: str) -> str:
    """The name of a response's turn; an id that is none of ours names no turn."""
    return response_id.removeprefix(PREFIX) if response_id.startswith(PREFIX) else ""


def _read(body: bytes, reading: Reading, ignored: list[str]) -> _ResponsesBody:
    parsed = _bodies.read(body, reading, ignored)
    for name, instead in _REFUSED.items():
        if getattr(parsed, name) not in (None, False):
            raise UnsupportedParameter(name, instead)
    if parsed.truncation == "auto":
        ignored.append("truncation")
    _check_metadata(parsed.metadata or {})
    return parsed


def _check_metadata(metadata: Mapping[str, str]) -> None:
    """It is kept with the turn."""
    longest = max((len(text) for pair in metadata.items() for text in pair), default=0)
    if len(metadata) > _MOST_METADATA or longest > _LONGEST_METADATA:
        raise InvalidParameter(
            "metadata", f"It has at most {_MOST_METADATA} entries of at most {_LONGEST_METADATA} characters."
        )


def _template_kwargs(parsed: _ResponsesBody, reading: Reading, ignored: list[str]) -> dict[str, Any] | None:
    check_depth(parsed.chat_template_kwargs, at="chat_template_kwargs")
    reasoning = parsed.reasoning or {}
    check_depth(reasoning, at="reasoning")
    known = ("effort", "summary", "generate_summary")
    ignored += [f"reasoning.{name}" for name, value in reasoning.items() if name not in known and value is not None]
    effort = reasoning.get("effort")
    if not isinstance(effort, str | None):
        raise InvalidParameter("reasoning.effort", "An effort is a string.")
    if effort is not None and effort not in reading.efforts:
        ignored.append("reasoning.effort")
        effort = None
    return parsed.template_kwargs(effort, at="reasoning.effort")


def _sampling(parsed: _ResponsesBody, stops: tuple[str, ...], ignored: list[str]) -> dict[str, Any]:
    sampling = parsed.sampling()
    if stops:
        sampling["stop"] = list(stops)
    schema = _schema(parsed.text or {}, ignored)
    return sampling if schema is None else {**sampling, "json_schema": schema}


def _schema(text: Mapping[str, Any], ignored: list[str]) -> str | None:
    """The JSON schema that the answer's text is held to."""
    check_depth(text, at="text")  # Answers repeat it.
    ignored += [f"text.{name}" for name, value in text.items() if name != "format" and value is not None]
    form = text.get("format")
    if form is None:
        return None
    kind = form.get("type") if type(form) is dict else None
    if kind is None:
        raise MissingParameter("text.format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise UnsupportedParameter("text.format.type", "it is one of text, json_object and json_schema.")
    schema = form.get("schema")
    if type(schema) is not dict:
        raise InvalidParameter("text.format.schema", "It is a JSON schema.")
    return _encode(schema).decode()


def _echo(parsed: _ResponsesBody) -> Echo:
    for name, most in _MOST_REPEATED.items():
        if len(_encode(getattr(parsed, name))) > most:
            raise InvalidParameter(name, f"It has {most >> 10} KiB of JSON at most, since answers repeat it.")
    return Echo(
        instructions=parsed.instructions,
        max_output_tokens=parsed.max_output_tokens,
        metadata=parsed.metadata or {},
        parallel_tool_calls=parsed.parallel_tool_calls is not False,
        previous_response_id=parsed.previous_response_id,
        reasoning=parsed.reasoning,
        temperature=parsed.temperature,
        text=parsed.text or Echo.TEXT,
        tool_choice="auto" if parsed.tool_choice is None else parsed.tool_choice,
        tools=parsed.tools or [],
        top_logprobs=parsed.top_logprobs or 0,
        top_p=parsed.top_p,
        user=parsed.user,
    )
