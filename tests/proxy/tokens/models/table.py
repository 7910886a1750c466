"""What each chat format does with canonical messages, found out by having it write and read them.

    python -m tests.proxy.tokens.models.table        # the table of docs/models.md

A model's reply is written as its family is known to write it (`Family.reply`), else as the format writes it in a
conversation that goes on, behind the prompt for it; with its reasoning before that, where the format drops it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proxy.tokens.models.families import FAMILIES, VARIANTS, Family, chat_format

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat

NAMES = (*FAMILIES, *VARIANTS)
HEAD = "| format | extends after | calls in one turn | reasoning | later system message |\n|---|---|---|---|---|\n"

USER: Message = {"role": "user", "content": "Hello?"}
SYSTEM: Message = {"role": "system", "content": "Mind the gap."}
SAID, THOUGHT = "Hi there.", "Let me see."
WAYS: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"thinking": True}, {"reasoning_effort": "high"})
"""Template arguments under which a format may reason."""
_THINK = "<think>\n{}\n</think>\n\n"
_THOUGHTS = {"gemma4": "<|channel>thought\n{}\n<channel|>"}
_SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Find.", "parameters": _SCHEMA}}
    for name in ("find", "look")
]


def row(name: str, models: Path) -> str:
    """A format's line of the table."""
    asked = Asked((FAMILIES | VARIANTS)[name], chat_format(name, models))
    way = next((way for way in WAYS if asked.can_reason(way)), None)
    args = TemplateArgs(TOOLS, way or None)
    spoken, called = asked.spoken(args, reasons=way is not None), asked.called(args, reasons=way is not None)
    extends = [
        what
        for what, goes_on in (
            ("messages", asked.extends(spoken, USER)),
            ("results", asked.extends(called, *_results(called.message))),
        )
        if goes_on
    ]
    calls = "several" if asked.can_call_twice(args, reasons=way is not None) else "one"
    reasoning = "no" if way is None else "yes" if not way else f"with `{next(iter(way))}`"
    return f"| `{name}` | {', '.join(extends) or 'no'} | {calls} | {reasoning} | {asked.later_system(spoken)} |\n"


@dataclass(frozen=True)
class Reply:
    message: Message
    """As it is read."""
    prompt: list[int]
    ids: list[int]
    args: TemplateArgs


@dataclass(frozen=True)
class Asked:
    """A format under examination."""

    family: Family
    model: ChatFormat

    def can_reason(self, way: dict[str, Any]) -> bool:
        args = TemplateArgs(TOOLS, way or None)
        wanted = (_message(SAID, reasons=True), _message(None, reasons=True, calls=1))
        return any(self._reply(message, args) is not None for message in wanted)

    def can_call_twice(self, args: TemplateArgs, *, reasons: bool) -> bool:
        return self._reply(_message(None, reasons=reasons, calls=2), args) is not None

    def spoken(self, args: TemplateArgs, *, reasons: bool) -> Reply:
        """A reply of text. Where the format drops the reasoning of one that is over, that of one which also calls,
        without the calls."""
        message = _message(SAID, reasons=reasons)
        reply = self._reply(message, args)
        if reply is None:
            reply = self._without_calls(self._reply(_message(SAID, reasons=reasons, calls=1), args))
        assert reply is not None, self.family.name
        return reply

    def called(self, args: TemplateArgs, *, reasons: bool) -> Reply:
        return self._sure(_message(None, reasons=reasons, calls=1), args)

    def extends(self, reply: Reply, *new: Message) -> bool:
        candidates = [Candidate(2, lambda: (reply.prompt, reply.ids))]
        return self.model.prompt([USER, reply.message, *new], reply.args, candidates).parent == 0

    def later_system(self, reply: Reply) -> str:
        ids = self.model.prompt([USER, reply.message, USER, SYSTEM], reply.args, []).ids
        text = self.model.vocabulary.decode(ids)
        assert SYSTEM["content"] in text
        return "as a reminder" if "<system-reminder>" in text else "as sent"

    def _sure(self, message: Message, args: TemplateArgs) -> Reply:
        reply = self._reply(message, args)
        assert reply is not None, (self.family.name, message)
        return reply

    def _reply(self, message: Message, args: TemplateArgs) -> Reply | None:
        """One that is read as the message; None where there is none."""
        try:
            prompt = list(self.model.prompt([USER], args, []).ids)
            for ids in self._written(message, prompt, args):
                read = self.model.parse(prompt, ids, args, seed=b"seed")
                if _bare(read) == _bare(message):
                    return Reply(read, prompt, ids, args)
        except Unrenderable:
            pass
        return None

    def _written(self, message: Message, prompt: list[int], args: TemplateArgs) -> Iterator[list[int]]:
        if self.family.reply is not None:
            calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in _calls(message)]
            reasoning, content = message.get("reasoning_content") or "", message["content"] or ""
            yield self.model.vocabulary.encode(self.family.reply(reasoning, content, calls))
            return
        whole = list(self.model.prompt([USER, message, *(_results(message) or [USER])], args, []).ids)
        ends = [place for place in range(len(prompt), len(whole)) if whole[place] in self.model.stop_token_ids]
        if whole[: len(prompt)] != prompt or not ends:
            return
        written = whole[len(prompt) : ends[0] + 1]
        yield written
        if message.get("reasoning_content") and not self.model.vocabulary.decode(prompt).endswith("</think>"):
            thought = _THOUGHTS.get(self.family.name, _THINK).format(message["reasoning_content"])
            yield [*self.model.vocabulary.encode(thought), *written]

    def _without_calls(self, reply: Reply | None) -> Reply | None:
        if reply is None:
            return None
        text = self.model.vocabulary.decode(reply.ids)
        ids = [
            *self.model.vocabulary.encode(text[: text.index(SAID) + len(SAID)]),
            self.model.stop_token_ids[0],
        ]
        read = self.model.parse(reply.prompt, ids, reply.args, seed=b"seed")
        return Reply(read, reply.prompt, ids, reply.args) if _bare(read)[2] == [] else None


def _message(content: str | None, *, reasons: bool = False, calls: int = 0) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasons:
        message["reasoning_content"] = THOUGHT
    if calls:
        message["tool_calls"] = [
            {
                "id": f"functions.{name}:{place}",
                "type": "function",
                "function": {"name": name, "arguments": '{"q": "a"}'},
            }
            for place, name in enumerate(("find", "look")[:calls])
        ]
    return message


def _calls(message: Message) -> list[Any]:
    return message.get("tool_calls") or []


def _results(message: Message) -> list[Message]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": "Ok."} for call in _calls(message)]


def _bare(message: Message) -> tuple[str, Any, list[Any]]:
    """What a message says, the ids of calls aside."""
    return (
        (message["content"] or "").strip(),
        message.get("reasoning_content"),
        [call["function"] for call in _calls(message)],
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(HEAD + "".join(row(name, Path(folder)) for name in NAMES), end="")
