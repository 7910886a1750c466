"""What is odd in how `renderers` 0.1.12 writes prompts, and what is done about it, all in one place, but for how it
writes calls and results (`history`) and tools (`tool_schemas`, `template_fixes`).

1. GLM and MiniMax write null content as the word "None", most formats drop a message whose role they don't know without
   a word, and gpt-oss and Inkling look for a tool's name on the tool message, which OpenAI's API puts on the call only:
   `renderable` fills in what they need and refuses what they would drop.
2. Its errors are those of its code (`'int' object has no attribute 'items'`), and the few that say something speak of
   Python. `refusal` has other words for these, and `support` finds out which field is meant.
3. `create_renderer` first imports the formats of all models that it knows, one of which brings a tokenizer of its own.
   `create_renderer` here imports the one that is asked for.
4. Some bridges read the reply that they extend, and catch `json.JSONDecodeError` only, where Python's `json.loads`
   raises RecursionError too (deep nesting), and ValueError (a number of over 4,300 digits). They are given a `loads`
   that calls these what they are: not JSON.
5. Two of its formats write the time: `dated` gives them that at which a session began, so that prompts agree for good.
6. gpt-oss' library encodes what messages say as text, whatever tokens it spells: nothing has to be marked for it.
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Final

import renderers
import renderers.parsing
from renderers import RendererConfig

from rolloutfleet_proxy.domain.messages import Message, joined_text
from rolloutfleet_proxy.tokens.argument_values import json_value
from rolloutfleet_proxy.tokens.model_files import TemplateRefusal

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

GPT_OSS: Final = "gpt-oss"
"""The one that encodes text as text, and moves the first message of role `system` to the front: later ones are
`developer`, which it writes alike."""
_INKLING: Final = "inkling"
"""The one that writes empty content as a text of its own, and no content as nothing."""
NAMES_CALLS_BY_ID = frozenset({"kimi-k2", "kimi-k2.5"})
"""Formats that write of a call's function no more than its id."""
# (role, field) of what formats write beside role, content, reasoning and tool calls: two conversations that differ
# there are not the same, and a bridge, which renders no earlier message, would not see it. A model's own template is
# never bridged: there a full render tells.
WRITTEN_FIELDS: Final[Mapping[str, set[tuple[str, str]]]] = {
    GPT_OSS: {("tool", "name")},
    "gemma4": {("tool", "name"), *((role, "tool_responses") for role in ROLES)},
    _INKLING: {("tool", "name")},
    "kimi-k2": {("tool", "name")},
    "kimi-k2.5": {(role, "name") for role in ROLES},
    "deepseek-v4": {(role, field) for role in ROLES for field in ("task", "wo_eos", "response_format")},
}


class Unrenderable(ValueError):
    """Messages, tools or template arguments that a model's chat format has no form for.

    `param` is the field of the request. None where it is not known which part of the request is at fault: the message
    is then no more than what the format says of it, which may be nothing.
    """

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message)
        self.param = param


_strict = ModuleType("strict json")
vars(_strict).update(vars(json), loads=json_value)
renderers.parsing.json = _strict


def create_renderer(tokenizer: Any, config: RendererConfig) -> Any:
    """`renderers.create_renderer` (3)."""
    name = type(config).__name__.removesuffix("Config")
    made = getattr(renderers, name, renderers.create_renderer)  # without one: automatic, or the user's own
    return made(tokenizer, config)


def dated(renderer: Any, clock: float | None) -> Any:
    """The renderer, with this time (seconds since the epoch, told as UTC) for what it writes; None: the time it is."""
    kind = type(renderer).__name__
    if clock is None or kind not in ("DefaultRenderer", "GptOssRenderer"):
        return renderer
    now = datetime.fromtimestamp(clock, UTC).replace(tzinfo=None)
    made = copy(renderer)
    if kind == "DefaultRenderer":
        made.config = renderer.config.model_copy(update={"strftime_now": now.strftime})
    elif renderer.config.conversation_start_date is None:
        made._conversation_start_date_resolved = now.strftime("%Y-%m-%d")
    return made


def renderable(name: str, messages: Sequence[Message], start: int = 0) -> list[Message]:
    """The messages from `start` on in the form that formats expect (1). Raises Unrenderable."""
    calling = messages if name in (GPT_OSS, _INKLING) else ()  # which need the names of tools beside results
    calls = [call for message in calling for call in message.get("tool_calls") or ()]
    names = {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
    return [_renderable(name, index, message, names) for index, message in enumerate(messages[start:], start)]


def _renderable(name: str, index: int, message: Message, tool_names: Mapping[str, str]) -> Message:
    role = message.get("role")
    if role not in ROLES:
        raise Unrenderable(f"messages of role {role!r} are unknown to the chat format {name}")
    form = {key: value for key, value in message.items() if value is not None}
    if name != _INKLING or role != "assistant":
        form.setdefault("content", "")
    text = joined_text(form.get("content"))
    if text is not None:
        form["content"] = text
    if role in ("system", "developer"):
        form["role"] = "developer" if name == GPT_OSS and index else "system"
    if role == "assistant" and not form.get("reasoning_content") and form.get("reasoning"):
        form["reasoning_content"] = form["reasoning"]
    if role == "tool" and not form.get("name") and message.get("tool_call_id") in tool_names:
        form["name"] = tool_names[message["tool_call_id"]]
    return form


_SAID = {
    "single tool call": "one message can make one call",
    "Unconsumed tool message": "a tool message must directly follow the assistant's message whose call it answers",
    "Developer messages require content": "its content must not be empty",
    "must be at the beginning": "a system message must come first",
    "No user query found": "it needs a message of a user",
    "DeepSeek V4 task": "there is no such task",
    "tools_in_user_message": "with tools_in_user_message a user's message must follow the system message",
    "tools in the first user message": "with tools_in_user_message there must be a user's message",
}
"""Words of the errors of `renderers`, and ours (2)."""


def refusal(error: Exception) -> Unrenderable:
    """What a format's error says, in our words or its template's (2)."""
    text = str(error)
    ours = next((ours for theirs, ours in _SAID.items() if theirs in text), "")
    return Unrenderable(text if isinstance(error, TemplateRefusal) else ours, param=None)
