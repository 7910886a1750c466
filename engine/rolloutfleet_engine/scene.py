"""What a prompt asks for, read from its token ids: the declared tools, how far the agent's loop has come."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from rolloutfleet_engine.cues import Message
from rolloutfleet_engine.model import Model

EXCERPT_TOKENS = 48
GLM_ROLES = re.compile(r"<\|(system|user|assistant|observation)\|>\n?")


class Thinking(Enum):
    """Whether the prompt leaves the reasoning to the model, has begun it, or has ruled it out."""

    FREE = "free"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    name: str
    parameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A prompt as the model sees it."""

    tools: tuple[Tool, ...] = ()
    rounds: int = 0
    """Answers the model has given since the last question."""

    answers: int = 0
    """Answers the model has given in all."""

    results: int = 0
    """Tool results since the last question."""

    excerpt: str = ""
    """The beginning of the last message."""

    thinking: Thinking = Thinking.FREE


@lru_cache(maxsize=256)
def read_tools(system: str) -> tuple[Tool, ...]:
    """The functions declared one a line between `<tools>` and `</tools>` of a system message."""
    blocks = re.findall("<tools>(.*?)</tools>", system, re.DOTALL)
    return tuple(tool for block in blocks for line in block.splitlines() if (tool := read_tool(line)))


def read_tool(line: str) -> Tool | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    parameters = function.get("parameters")
    return Tool(name=function["name"], parameters=parameters if isinstance(parameters, dict) else {})


class ChatReader:
    """Reads ChatML prompts (`<|im_start|>role … <|im_end|>`) of one model without decoding all of them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._start = model.token_id("<|im_start|>")
        self._end = model.token_id("<|im_end|>")
        self._result = model.token_id("<tool_response>")
        # Without the end of the line, which is one token with what follows where a message begins with another.
        self._system = model.encode("system")
        self._user = model.encode("user")
        self._assistant = model.encode("assistant")
        self._header = model.encode("assistant\n")
        self._closed = model.encode("<think>\n\n</think>\n\n")
        self._open = model.encode("<think>\n")

    def openings(self, ids: Sequence[int]) -> Iterator[tuple[int, Thinking]]:
        """Where the model's own words may begin in `ids`: the likeliest place first, the end of the prompt last.

        A prompt that goes on where a part broke off holds the model's own words behind the assistant's header.
        """
        header = self._header_end(ids)
        if header is not None:
            yield header, Thinking.FREE
            for prefill, thinking in ((self._closed, Thinking.CLOSED), (self._open, Thinking.OPEN)):
                if starts_with(ids, prefill, header):
                    yield header + len(prefill), thinking
        yield len(ids), self._thinking_at_end(ids, header or 0)

    def read(self, ids: Sequence[int], *, thinking: Thinking) -> Scene:
        starts = [place for place, token_id in enumerate(ids) if token_id == self._start]
        answers = [place for place in starts[:-1] if starts_with(ids, self._assistant, place + 1)]
        rounds = results = 0
        for place in reversed(starts[:-1]):
            if place in answers:
                rounds += 1
            elif starts_with(ids, self._user, place + 1):
                begin = place + 1 + len(self._user)
                if self._result not in ids[begin : begin + 2]:
                    break
                until = ids.index(self._end, place) if self._end in ids[place:] else len(ids)
                results += ids[place:until].count(self._result)
        return Scene(
            tools=self._tools(ids, starts),
            rounds=rounds,
            answers=len(answers),
            results=results,
            excerpt=self._excerpt(ids, starts),
            thinking=thinking,
        )

    def messages(self, ids: Sequence[int]) -> list[Message]:
        """The messages of a prompt in ChatML or in GLM's form, without the header behind which the answer comes."""
        text = self._model.decode(ids, skip_special_tokens=False)
        if self._start is None:
            _, *found = GLM_ROLES.split(text)
            pairs = zip(found[::2], found[1::2], strict=True)
            return [Message(role="tool" if role == "observation" else role, text=said) for role, said in pairs][:-1]
        parts = text.split("<|im_start|>")[1:-1]
        return [message_in(part.partition("<|im_end|>")[0]) for part in parts]

    def _tools(self, ids: Sequence[int], starts: Sequence[int]) -> tuple[Tool, ...]:
        if not starts or not starts_with(ids, self._system, starts[0] + 1):
            return ()
        until = starts[1] if len(starts) > 1 else len(ids)
        return read_tools(self._model.decode(ids[starts[0] : until]))

    def _excerpt(self, ids: Sequence[int], starts: Sequence[int]) -> str:
        if len(starts) < 2:
            return ""
        place = starts[-2] + 1
        message = ids[place : starts[-1]]
        results = [at for at, token_id in enumerate(message) if token_id == self._result]
        begin = results[-1] + 1 if results else next((n for n, t in enumerate(message) if t == self._header[-1]), 0) + 1
        words = self._model.decode(message[begin : begin + EXCERPT_TOKENS]).split()
        return " ".join(word for word in words if "<" not in word and "\ufffd" not in word)

    def _header_end(self, ids: Sequence[int]) -> int | None:
        for place in range(len(ids) - 1, -1, -1):
            if ids[place] == self._start:
                return place + 1 + len(self._header) if starts_with(ids, self._header, place + 1) else None
        return None

    def _thinking_at_end(self, ids: Sequence[int], begin: int) -> Thinking:
        tail = list(ids[begin:])
        opened, closed = self._open[0], self._closed[2] if len(self._closed) > 2 else None
        for token_id in reversed(tail):
            if token_id == closed:
                return Thinking.CLOSED
            if token_id == opened:
                return Thinking.OPEN
        return Thinking.CLOSED if tail else Thinking.FREE


def message_in(part: str) -> Message:
    role, _, text = part.partition("\n")
    return Message(role="tool" if text.startswith("<tool_response>") else role, text=text)


def starts_with(ids: Sequence[int], head: Sequence[int], place: int) -> bool:
    return list(ids[place : place + len(head)]) == list(head)
