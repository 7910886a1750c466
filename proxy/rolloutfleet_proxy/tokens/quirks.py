"""What is odd in `renderers` 0.1.12, and what is done about it, all in one place, but for how it writes calls, results
(`history`) and tools (`tool_schemas`, `deepseek`).

1. Its parsers catch `json.JSONDecodeError` only, but Python's `json.loads` also raises RecursionError (deep nesting)
   and ValueError (a number of over 4,300 digits), and lets NaN and Infinity pass. A model can write all of these.
   `strict_json` gives the parsers a `loads` that calls them what they are: not JSON.
2. DeepSeek: after tool results the prompt goes on without a role mark, and a `<think>` that it opens there isn't seen,
   so the reasoning would be taken for content. `generation_tail` puts the mark before it.
3. `stripped`: reasoning that is still open keeps the spaces around it, closed reasoning loses them; GLM strips content
   only where tool calls follow it. What has been streamed can't be stripped later, so both are always stripped.
4. GLM and MiniMax write null content as the word "None", most formats drop a message whose role they don't know without
   a word, and gpt-oss looks for a tool's name on the tool message, which OpenAI's API puts on the call only:
   `renderable` fills in what they need and refuses what they would drop.
5. Gemma 4 takes `thought` and its line break, which open a thought, by their tokens, which a packed run hides; and a
   thought channel that opens after other text swallows that text. Llama 3 forgets what comes before a later role
   header. `readable` and `stripped` see to it that such a mark in the middle of a reply is text.
6. A reasoning mark spelled with ordinary tokens (`<`, `/think>`) is rightly no mark to Qwen3's scan of tokens, but then
   its split of the text takes it for one. The tail of such reasoning becomes content. Left as it is: it is the model's
   own odd text, and tokens are unharmed.
7. Its errors are those of its code (`'int' object has no attribute 'items'`), and the few that say something speak of
   Python. `refusal` has other words for these, and `faults` finds out which field is meant.
8. DeepSeek V4 writes an empty line between content and calls, reads it as content, and so would write it twice. Its
   bridge takes one tool's result at a time; of several, all is rendered anew, and has to come out as it was sampled.
   `before_calls` takes that line for what it is.
9. `create_renderer` first imports the formats of all models that it knows, one of which brings a tokenizer of its own.
   `create_renderer` here imports the one that is asked for.
10. Inkling drops the text before a thought that doesn't end, as where the token limit cuts it. `readable` ends it.
11. A role mark of DeepSeek's or Laguna's that begins a reply is dropped where reasoning follows it, and else is text.
    `DROPPED_MARKS` are these.
12. gpt-oss' library encodes what messages say as text, whatever tokens it spells: nothing has to be marked for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import ModuleType
from typing import Any

import renderers
import renderers.parsers
import renderers.parsing
from renderers import RendererConfig

from rolloutfleet_proxy.domain.messages import Message, joined_text
from rolloutfleet_proxy.tokens.template import TemplateRefusal
from rolloutfleet_proxy.tokens.vocabulary import Run, Vocabulary

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

# Formats that write what they get verbatim, where spaces must survive for a full render to find its own tokens again.
_VERBATIM = frozenset({"default", "inkling", "laguna-xs-2.1", "laguna-s-2.1"})
_STRIPS_CONTENT = frozenset({"glm-4.5", "glm-5", "glm-5.1", "glm-5.3"})
ENCODES_TEXT_AS_TEXT = frozenset({"gpt-oss"})
_KNOWS_DEVELOPERS = frozenset({"gpt-oss"})
_NEEDS_TOOL_NAMES = frozenset({"gpt-oss"})
NAMES_CALLS_BY_ID = frozenset({"kimi-k2", "kimi-k2.5"})
"""Formats that write of a call's function no more than its id."""
# (role, field) of what formats write beside role, content, reasoning and tool calls: two conversations that differ
# there are not the same, and a bridge, which renders no earlier message, would not see it. A model's own template is
# never bridged: there a full render tells.
_WRITTEN = {
    "gpt-oss": {("tool", "name")},
    "gemma4": {("tool", "name"), *((role, "tool_responses") for role in ROLES)},
    "inkling": {("tool", "name")},
    "kimi-k2": {("tool", "name")},
    "kimi-k2.5": {(role, "name") for role in ROLES},
    "deepseek-v4": {(role, field) for role in ROLES for field in ("task", "wo_eos", "response_format")},
}
_MARK_ONLY_AT_START = {"gemma4": "<|channel>", "llama-3": "<|end_header_id|>"}
_INKLING = "inkling"
_INKLING_REPLY_ENDS = ("<|content_model_end_sampling|>", "<|endoftext|>")
GEMMA_THOUGHT = "thought\n"
_DEEPSEEK = frozenset({"deepseek-v3", "deepseek-r1"})
_DEEPSEEK_ASSISTANT = "<\uff5cAssistant\uff5c>"
_DEEPSEEK_OUTPUTS_END = "<\uff5ctool\u2581outputs\u2581end\uff5c>"
DROPPED_MARKS = dict.fromkeys(_DEEPSEEK, _DEEPSEEK_ASSISTANT) | dict.fromkeys(
    ("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1"), "<assistant>"
)

# A generation prompt is a few tokens; this many hold any of them, letter by letter.
_TAIL_TOKENS = 64


class Unrenderable(ValueError):
    """Messages, tools or template arguments that a model's chat format has no form for.

    `param` is the field of the request. None where it is not known which part of the request is at fault: the message
    is then no more than what the format says of it, which may be nothing.
    """

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message)
        self.param = param


class _StrictJson(ModuleType):
    JSONDecodeError = json.JSONDecodeError
    dumps = staticmethod(json.dumps)

    @staticmethod
    def loads(text: str) -> Any:
        return json_value(text)


def json_value(text: str) -> Any:
    """What JSON text says. Raises json.JSONDecodeError, for all that is not JSON (1)."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def strict_json() -> None:
    """Make the parsers of `renderers` read JSON strictly (1)."""
    module = _StrictJson("strict json")
    renderers.parsing.json = module
    renderers.parsers.json = module


def written_fields(name: str) -> frozenset[tuple[str, str]]:
    """(role, field) of what counts where the messages of two conversations are compared, beside what always does."""
    return frozenset(_WRITTEN.get(name, ()))


def system_roles(name: str) -> tuple[str, ...]:
    """The roles of system messages that a format tells apart."""
    return ("system", "developer") if name in _KNOWS_DEVELOPERS else ("system",)


def create_renderer(tokenizer: Any, config: RendererConfig) -> Any:
    """`renderers.create_renderer` (9)."""
    name = type(config).__name__.removesuffix("Config")
    renderer = getattr(renderers, name, None)
    if renderer is None:  # one that isn't named so: automatic, or the user's own
        return renderers.create_renderer(tokenizer, config)
    return renderer(tokenizer, config)


def generation_tail(prompt_ids: Sequence[int], *, stops: frozenset[int], mark: list[int]) -> list[int]:
    """The end of a prompt, from which a parser learns in which channel the reply starts (2).

    `mark` is what `assistant_mark` says, in tokens.
    """
    tail = list(prompt_ids[-_TAIL_TOKENS:])
    for position in range(len(tail) - 1, -1, -1):
        if tail[position] in stops:
            del tail[:position]
            break
    if not mark or mark[0] in tail:
        return tail
    outputs_end = next((index for index in range(len(tail) - 1, -1, -1) if tail[index] == mark[-1]), -1)
    return [mark[0], *tail[outputs_end + 1 :]]


def assistant_mark(name: str) -> tuple[str, ...]:
    """The role mark that `generation_tail` needs, and the mark that it may stand after; none for most formats."""
    return (_DEEPSEEK_ASSISTANT, _DEEPSEEK_OUTPUTS_END) if name in _DEEPSEEK else ()


def readable(name: str, packed: list[int], vocabulary: Vocabulary) -> list[int]:
    """The packed reply without marks that a parser would stumble over (5), and with those that it misses (10)."""
    if name == _INKLING:
        return _with_thought_ended(packed, vocabulary)
    mark = _MARK_ONLY_AT_START.get(name)
    token_id = None if mark is None else vocabulary.convert_tokens_to_ids(mark)
    if token_id is None or token_id not in packed[1:]:
        return packed
    text = Run(vocabulary.token_bytes(token_id))
    return [*packed[:1], *(text if each == token_id else each for each in packed[1:])]


def _with_thought_ended(packed: list[int], vocabulary: Vocabulary) -> list[int]:
    """With its end behind a thought that is the last of several messages, is still open, and is no call."""
    ids = vocabulary.convert_tokens_to_ids
    end, over = ids("<|end_message|>"), {ids(mark) for mark in _INKLING_REPLY_ENDS}
    reply = list(takewhile(lambda each: each not in over, packed))
    if end not in reply:
        return packed
    last = reply[len(reply) - reply[::-1].index(end) :]
    if last[:1] == [ids("<|message_model|>")]:
        del last[:1]
    is_thought = last[:1] == [ids("<|content_thinking|>")] and ids("<|content_invoke_tool_json|>") not in last
    return [*reply, end] if is_thought else packed


def stripped(name: str, *, reasoning: str, content: str, closed: bool) -> tuple[str, str]:
    """Reasoning and content without what a later token could still take away (3, 5)."""
    if name in _VERBATIM:
        return reasoning, content
    if name == "gemma4" and closed:
        reasoning = reasoning.removeprefix(GEMMA_THOUGHT)
    return reasoning.strip(), content.strip() if name in _STRIPS_CONTENT else content


def before_calls(name: str, content: str) -> str:
    """The content of a reply with calls, without what the format itself writes between the two (8)."""
    return content.removesuffix("\n\n") if name == "deepseek-v4" else content


def renderable(name: str, messages: Sequence[Message], start: int = 0) -> list[Message]:
    """The messages from `start` on in the form that formats expect (4). Raises Unrenderable."""
    names = _tool_names(messages) if name in _NEEDS_TOOL_NAMES else {}
    return [_renderable(name, message, names) for message in messages[start:]]


def _renderable(name: str, message: Message, tool_names: Mapping[str, str]) -> Message:
    role = message.get("role")
    if role not in ROLES:
        raise Unrenderable(f"messages of role {role!r} are unknown to the chat format {name}")
    form = {key: value for key, value in message.items() if value is not None}
    content = form.get("content", "")
    if isinstance(content, list):
        text = joined_text(content)
        content = content if text is None else text
    form["content"] = content
    if role == "developer" and name not in _KNOWS_DEVELOPERS:
        form["role"] = "system"
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
    "DeepSeek V4 task": "there is no such task",
    "tools_in_user_message": "with tools_in_user_message a user's message must follow the system message",
    "tools in the first user message": "with tools_in_user_message there must be a user's message",
}
"""Words of the errors of `renderers`, and ours (7)."""


def refusal(name: str, error: Exception) -> Unrenderable:
    """What a format's error says, in our words or its template's (7)."""
    text = str(error)
    if "No user query found" in text:
        return Unrenderable(f"the chat format {name} needs a message of a user")
    if isinstance(error, TemplateRefusal):
        return Unrenderable(text, param=None)
    return Unrenderable(next((ours for theirs, ours in _SAID.items() if theirs in text), ""), param=None)


def _tool_names(messages: Sequence[Message]) -> dict[str, str]:
    return {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("id"), str) and isinstance(call.get("function", {}).get("name"), str)
    }
