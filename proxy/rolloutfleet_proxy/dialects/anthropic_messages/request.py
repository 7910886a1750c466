"""A typed parse of a request for a message. Pure.

Clients come as they are: what changes nothing that is promised is taken and named (`TurnRequest.ignored`), what differs
from request to request without meaning anything is taken out and named (`TurnRequest.stripped`), and only what would
make the answer another thing than was asked for is a 400 that names the field. Strictly read, what would be ignored is
a 400 too.

- *Without effect, as the API has it too*: `diagnostics`, `inference_geo`, `metadata`, `service_tier`, `speed`,
  `user_profile_id`, `workspace_id`.
- *Stripped*: `cache_control`, wherever it stands, and Claude Code's billing header in `system`.
- *Ignored, and named*: `thinking` (the model's chat format says whether it thinks, and what it thinks is always shown),
  `context_management`, `container`, `mcp_servers`, an `output_config.effort` that the chat format doesn't take, tools
  that Anthropic's servers run, what else `conversation` says, and every field that is not known here.
- *Held to by a grammar*: `tool_choice` and `output_config.format`, as far as `tool_choice.held_calls` says.
  `output_format` is the beta's name of the latter.
- *Refused*: images unless a text stands for them, a last message of the assistant's, which would have to be continued;
  `thread`, of which a caller sends only what is new, in the words by which the API's own SDK then sends the whole
  conversation; `compaction`, which asks for a summary in the place of an answer.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta as Rule

from rolloutfleet_proxy.dialects.anthropic_messages.conversation import conversation
from rolloutfleet_proxy.dialects.anthropic_messages.notes import CACHE_CONTROL, Notes
from rolloutfleet_proxy.dialects.anthropic_messages.tools import choice_of, functions
from rolloutfleet_proxy.dialects.base import MAX_INT32, Reading, TurnRequest
from rolloutfleet_proxy.dialects.bodies import MAX_STOPS, Body, BodyReader, StopString, TokenCount
from rolloutfleet_proxy.dialects.depth import check_depth, too_deep
from rolloutfleet_proxy.dialects.images import Images
from rolloutfleet_proxy.dialects.tool_choice import held_calls
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from rolloutfleet_proxy.domain.messages import TemplateArgs

_Object = dict[str, Any]


class MessagesRequest(TurnRequest, frozen=True, kw_only=True):
    """A request that can be honoured."""

    names: ClassVar = {
        "messages": "messages",
        "chat_template_kwargs": "output_config",
        "reasoning_effort": "output_config.effort",
        "stops": "stop_sequences",
        "json_schema": "output_config.format.schema",
    }
    max_tokens_is_upper_bound: ClassVar = True


class _MessagesBody(Body):
    messages: Annotated[list[_Object], Rule(min_length=1)]
    max_tokens: TokenCount | None = None
    system: str | list[_Object] | None = None
    tools: list[_Object] | None = None
    tool_choice: _Object | None = None
    output_config: _Object | None = None
    output_format: _Object | None = None

    top_k: Annotated[int, Rule(ge=1, le=MAX_INT32)] | None = None
    stop_sequences: Annotated[list[StopString], Rule(max_length=MAX_STOPS)] | None = None

    cache_control: Any = None
    thread: Any = None
    compaction: Any = None

    thinking: Any = None
    context_management: Any = None
    container: Any = None
    mcp_servers: Any = None

    diagnostics: Any = None
    inference_geo: Any = None
    metadata: Any = None
    service_tier: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


_OUTPUT_CONFIG = frozenset(("effort", "format"))
_FORMAT = frozenset(("type", "schema"))
_NO_THREADS: Final = {"error_code": "thread_unsupported_request", "unsupported": []}
"""By this the `anthropic` SDK knows (`lib/threads/_thread_state.py`)."""

_bodies = BodyReader(_MessagesBody, unused=("thinking", "context_management", "container", "mcp_servers"))


def parse_messages(body: bytes, reading: Reading, *, to_count: bool = False) -> MessagesRequest:
    """Read a request's body once; `to_count` a request that only asks how long its prompt is.

    Raises DomainError that names the field at fault.
    """
    notes = Notes(Images(replaced=reading.replaces_images))
    parsed = _bodies.read(body, reading, notes.ignored)
    if parsed.cache_control is not None:
        notes.stripped[CACHE_CONTROL] = None
    _check_whole(parsed)
    if not to_count:
        _check_answerable(parsed)
    try:
        messages = conversation(parsed.system, parsed.messages, notes)
    except RecursionError:  # Documents hold documents.
        raise too_deep("messages") from None
    tools = parsed.tools or []
    choice = choice_of(parsed.tool_choice, tools, functions(tools, notes), notes)
    effort, grammar = _output(parsed, reading, notes)
    sampling = _sampling(parsed) | grammar
    calls = held_calls(choice, sampling, reading, notes.ignored)
    request = MessagesRequest(
        messages=messages,
        model=parsed.model,
        template=TemplateArgs(choice.shown, effort),
        calls=calls,
        max_tokens=parsed.max_tokens,
        sampling=sampling,
        stops=tuple(parsed.stop_sequences or ()),
        stream=parsed.stream or False,
        logprobs=False,
        top_logprobs=0,
        ignored=tuple(notes.ignored),
        stripped=tuple(notes.stripped),
        placeholders=notes.images.count,
        images=notes.images.digest,
    )
    reading.check_ignored(request.ignored)
    return request


def _check_whole(parsed: _MessagesBody) -> None:
    """Raises UnsupportedParameter where the messages may not be the whole conversation, or no answer is asked for."""
    if parsed.compaction is not None:
        raise UnsupportedParameter("compaction", "no summary is made here: leave it out.")
    if parsed.thread:
        refusal = UnsupportedParameter("thread", "no conversation is kept here: send it whole, without a thread.")
        refusal.details = {"details": _NO_THREADS}
        raise refusal


def _check_answerable(parsed: _MessagesBody) -> None:
    if parsed.max_tokens is None:
        raise MissingParameter("max_tokens")
    last = len(parsed.messages) - 1
    if parsed.messages[last].get("role") == "assistant":
        raise UnsupportedParameter(
            f"messages[{last}].role", "the last message can't be the assistant's: no answer is continued here."
        )


def _sampling(parsed: _MessagesBody) -> dict[str, Any]:
    sampling = parsed.sampling()
    if parsed.stop_sequences:
        sampling["stop"] = parsed.stop_sequences
    return sampling


def _output(parsed: _MessagesBody, reading: Reading, notes: Notes) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """The template arguments of `output_config`, and the sampling parameter for its grammar."""
    config = parsed.output_config or {}
    notes.others(config, _OUTPUT_CONFIG, at="output_config")
    effort, form, at = config.get("effort"), config.get("format"), "output_config.format"
    if parsed.output_format is not None:
        if form not in (None, parsed.output_format):
            raise InvalidParameter("output_format", "output_config has another format.")
        form, at = parsed.output_format, "output_format"
    if not isinstance(effort, str | None):
        raise InvalidParameter("output_config.effort", "It is a string.")
    if effort is not None and effort not in reading.efforts:
        notes.ignored.append("output_config.effort")
        effort = None
    arguments = None if effort is None else {"reasoning_effort": effort}
    return arguments, {} if form is None else _grammar(form, notes, at=at)


def _grammar(form: Any, notes: Notes, *, at: str) -> dict[str, str]:
    if type(form) is not dict or form.get("type") != "json_schema" or type(form.get("schema")) is not dict:
        raise InvalidParameter(at, "It is an object of type json_schema with a schema.")
    notes.others(form, _FORMAT, at=at)
    check_depth(form["schema"], at=f"{at}.schema")
    return {"json_schema": msgspec.json.encode(form["schema"]).decode()}
