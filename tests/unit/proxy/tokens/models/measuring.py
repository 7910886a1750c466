"""What a chat format holds of a conversation in canonical form, found out by having it write and read one."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.unit.proxy.tokens.models.families import FAMILIES

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat

ARGUMENTS: Final[Sequence[dict[str, Any]]] = ({}, {"enable_thinking": True}, {"reasoning_effort": "high"})
"""By which a format may be asked to think, the default first."""
THOUGHT, WORDS = "Let me see.", "Look at this."
CALLS: Final[Sequence[tuple[str, dict[str, Any]]]] = (("find", {"q": "x", "n": 3}), ("look_up", {"q": "17"}))
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Finds things.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name, _ in CALLS
]
ASKED: Final[list[Message]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
]
REMINDED: Final[list[Message]] = [*ASKED, {"role": "system", "content": "Mind the gap."}]

RESULTS, USER, SYSTEM = "tool results", "users' messages", "system messages"


@dataclass(frozen=True, slots=True)
class Measured:
    """One format; what is rendered is rendered as a proxy does by default."""

    across: tuple[str, ...]
    """What turns were extended across, of `RESULTS`, `USER` and `SYSTEM`, with reasoning in every reply that has it."""
    calls: int
    """How many of two calls in one reply come out; 1 where the format makes no more."""
    thinks: bool
    """Whether a reply's reasoning comes out as such."""
    arguments: dict[str, Any]
    """The template arguments that it takes for that."""
    keeps_since_user: bool
    """Whether reasoning that an agent sends is written where no user's message follows."""
    keeps_before_user: bool
    """The same where one does."""
    later_as_sent: bool
    """Whether later system messages are written as such, not as a user's reminder."""


@dataclass(frozen=True, slots=True)
class Replies:
    """What a model of the format may write."""

    args: TemplateArgs
    """Of the prompt that asks for them."""
    thought: str
    """Their reasoning; empty where the format reads none."""
    working: array[int]
    """Reasoning, text and two calls, as far as the format holds them."""
    final: array[int]
    """Reasoning and text."""


def measured(name: str, model: ChatFormat) -> Measured:
    """Raises AssertionError where what is read is not what was written."""
    calls = _calls(name)
    made = replies(name, model)
    args = made.args
    return Measured(
        across=tuple(_extended(model, made)),
        calls=len(_read(model, args, made.working)["tool_calls"]),
        thinks=bool(made.thought),
        arguments=dict(args.kwargs or {}) if made.thought else {},
        keeps_since_user=_writes_thought(model, args, [_said(THOUGHT, calls), *_results(calls)]),
        keeps_before_user=_writes_thought(model, args, [_said(THOUGHT, ()), {"role": "user", "content": "More?"}]),
        later_as_sent=_writes(model, REMINDED, NO_ARGS) == model.prompt(REMINDED, NO_ARGS, []).ids,
    )


# Replies


def replies(name: str, model: ChatFormat) -> Replies:
    """Raises AssertionError where no such reply comes out as it was meant."""
    calls = _calls(name)
    thinks, args = _thinking(name, model, calls)
    thought = THOUGHT if thinks else ""
    working = _reply(name, model, args, thought, calls, spelled=True)
    final = _reply(name, model, args, thought, (), spelled=True)
    assert working is not None and final is not None, name
    return Replies(args, thought, working, final)


def _calls(name: str) -> Sequence[tuple[str, dict[str, Any]]]:
    parallel = name not in FAMILIES or FAMILIES[name].parallel
    return CALLS if parallel else CALLS[:1]


def _thinking(name: str, model: ChatFormat, calls: Sequence[tuple[str, Any]]) -> tuple[bool, TemplateArgs]:
    """Whether the format reads reasoning, and under which arguments; the default ones where under none."""
    for kwargs in ARGUMENTS:
        args = TemplateArgs(TOOLS, kwargs or None)
        if all(map(model.takes, kwargs)) and _reply(name, model, args, THOUGHT, calls) is not None:
            return True, args
    args = TemplateArgs(TOOLS)
    return _reply(name, model, args, THOUGHT, calls, spelled=True) is not None, args


def _reply(
    name: str,
    model: ChatFormat,
    args: TemplateArgs,
    thought: str,
    calls: Sequence[tuple[str, Any]],
    *,
    spelled: bool = False,
) -> array[int] | None:
    """The tokens of a reply that says all this: as the family publishes it, else as the format writes it in an earlier
    message; `spelled`: else with reasoning as most models spell it. None where no such reply comes out as meant."""
    for output in _replies(name, model, args, thought, calls, spelled=spelled):
        made = _read(model, args, output)
        read = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made["tool_calls"]]
        # Some formats hold no text beside calls.
        said = made["reasoning_content"].strip() == thought and made["content"] in (WORDS, *[""] * bool(calls))
        if said and read == list(calls):
            return output
    return None


def _replies(
    name: str,
    model: ChatFormat,
    args: TemplateArgs,
    thought: str,
    calls: Sequence[tuple[str, Any]],
    *,
    spelled: bool,
) -> Iterator[array[int]]:
    published = FAMILIES[name].reply if name in FAMILIES else None
    if published is not None:
        text = published(thought, WORDS, calls)
        yield array("i", model.vocabulary.encode(text, add_special_tokens=False))
        return
    yield from _written(model, args, thought, calls)
    if thought:  # Some formats write no reasoning of messages with calls, or of those without.
        for head in _written(model, args, thought, () if calls else CALLS):
            for tail in _written(model, args, "", calls):
                before, _, _ = model.vocabulary.decode(head).partition(WORDS)
                _, _, behind = model.vocabulary.decode(tail).partition(WORDS)
                yield array("i", model.vocabulary.encode(before + WORDS + behind, add_special_tokens=False))
    if thought and spelled:  # Others write none at all.
        for plain in _written(model, args, "", calls):
            text = f"<think>\n{thought}\n</think>\n\n{model.vocabulary.decode(plain)}"
            yield array("i", model.vocabulary.encode(text, add_special_tokens=False))


def _written(
    model: ChatFormat, args: TemplateArgs, thought: str, calls: Sequence[tuple[str, Any]]
) -> Iterator[array[int]]:
    """What the format writes for such a message behind the prompt that asks for a reply, up to its end."""
    prompt = model.prompt(ASKED, args, []).ids
    # A user's message makes many formats drop reasoning, and some end a reply by what follows.
    for following in (_results(calls), [{"role": "tool", "tool_call_id": "functions.find:0", "content": "a"}], []):
        whole = _writes(model, [*ASKED, _said(thought, calls), *following], args)
        if whole is None or whole[: len(prompt)] != prompt:
            continue
        rest = whole[len(prompt) :]
        end = next((place for place, token in enumerate(rest) if token in model.stop_token_ids), None)
        if end is not None:
            yield rest[: end + 1]


def _said(thought: str, calls: Sequence[tuple[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": WORDS}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {
                "id": _call_id(*each),
                "type": "function",
                "function": {"name": each[1][0], "arguments": json.dumps(each[1][1])},
            }
            for each in enumerate(calls)
        ]
    return message


def _call_id(index: int, call: tuple[str, Any]) -> str:
    return f"functions.{call[0]}:{index}"


def _results(calls: Sequence[tuple[str, Any]]) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": _call_id(*each), "content": f"result {each[0]}"} for each in enumerate(calls)
    ]


def _read(model: ChatFormat, args: TemplateArgs, output: Sequence[int]) -> Message:
    prompt = model.prompt(ASKED, args, []).ids
    made = model.reader(prompt, args, seed=b"a").read(output).message
    return {
        "content": (made["content"] or "").strip(),
        "reasoning_content": made.get("reasoning_content", ""),
        "tool_calls": made.get("tool_calls", []),
    }


# Prompts


def _extended(model: ChatFormat, replied: Replies) -> Iterator[str]:
    """A task: calls, their results, an answer, more of the user's, and a system message before yet more of it."""
    messages, args = list(ASKED), replied.args
    prompt = model.prompt(messages, args, []).ids
    user: Message = {"role": "user", "content": "More?"}
    for what, output in ((RESULTS, replied.working), (USER, replied.final), (SYSTEM, replied.final)):
        made = model.reader(prompt, args, seed=what.encode()).read(output).message
        assert (made.get("reasoning_content") or "").strip() == replied.thought, what
        messages.append(made)
        parent = Candidate(len(messages), lambda ids=(prompt, output): ids)  # type: ignore[misc]
        if what == RESULTS:
            ids = [call["id"] for call in made["tool_calls"]]
            messages += [{"role": "tool", "tool_call_id": each, "content": "found"} for each in ids]
        else:
            messages += [{"role": "system", "content": "Mind it."}, user] if what == SYSTEM else [user]
        child = model.prompt(messages, args, [parent])
        if child.parent == 0:
            assert child.ids[: len(prompt) + len(output)] == prompt + output
            yield what
        prompt = child.ids


def _writes_thought(model: ChatFormat, args: TemplateArgs, then: list[Message]) -> bool:
    ids = _writes(model, [*ASKED, *then], args)
    return ids is not None and THOUGHT in model.vocabulary.decode(ids)


def _writes(model: ChatFormat, messages: list[Message], args: TemplateArgs) -> array[int] | None:
    try:
        return model.full(messages, args)
    except Unrenderable:
        return None
