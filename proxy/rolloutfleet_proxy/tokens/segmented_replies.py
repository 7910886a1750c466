"""A reply's text -> its pieces, for formats in which a reply is several messages, each with a head. Incremental, and
pure."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rolloutfleet_proxy.tokens.call_reading import JsonCalls, arguments_of, call_of
from rolloutfleet_proxy.tokens.reply_parser import Kind, ReplyParser, WrittenCall
from rolloutfleet_proxy.tokens.reply_text import Alphabet

_FUNCTION: Final = re.compile(r"to=functions\.([^\s<\ud800-\udfff]+)")
_INKLING_CALLS: Final = JsonCalls(("args", "arguments", "parameters"))


class SegmentedParser(ReplyParser):
    """What these formats share: a message's body is content or reasoning up to a mark, or a call as a whole."""

    _ends: str
    """The marks that end a message."""
    _begins: Mapping[Kind, str]
    """Those that begin something behind a body of each kind that has no end."""

    def __init__(self, alphabet: Alphabet, *, has_calls: bool) -> None:
        """`has_calls`: whether any are wanted."""
        super().__init__(alphabet, Kind.OWN)
        self._has_calls = has_calls
        self._breaks = frozenset(alphabet.chars.values())

    def _waits_beyond(self, text: str) -> bool:
        return self._within is Kind.OWN and bool(self._text or self._later) and self._breaks.isdisjoint(text)

    def _step(self, final: bool) -> bool:
        if self._within is Kind.OWN:
            return self._between(final)
        # Text of a body up to the first mark that ends it, and that mark, unless it begins something.
        begins = self._begins[self._within]
        end = self._first(self._ends + begins)
        self._take(self._within, len(self._text) if end < 0 else end)
        if end >= 0:
            self._take(Kind.OWN, 0 if self._text[0] in begins else 1)
            self._within = Kind.OWN
        return end >= 0

    @abstractmethod
    def _between(self, final: bool) -> bool:
        """The step where no body has begun."""

    def _first(self, marks: str, start: int = 0) -> int:
        """Where the first of these marks stands; -1 for none."""
        return min((place for place in (self._text.find(mark, start) for mark in marks) if place >= 0), default=-1)

    def _take_call(self, length: int, read: Callable[[], WrittenCall]) -> None:
        try:
            self._take(Kind.CALL, length, read())
        except (ValueError, RecursionError):
            self._take(Kind.CONTENT, length)


class HarmonyParser(SegmentedParser):
    """gpt-oss's: `<|start|>HEAD<|message|>BODY`, which `<|end|>` or `<|call|>` ends, or the next start.

    See https://github.com/openai/harmony. The channel in a head says what the body is: `analysis` is reasoning. A
    recipient `functions.NAME` makes it a call.
    """

    def __init__(self, alphabet: Alphabet, marks: Sequence[str], *, prompt_end: str | None, has_calls: bool) -> None:
        """`marks` are the format's, in the order of its description. `prompt_end` is what stands behind the last start
        of the prompt; None where there is none."""
        super().__init__(alphabet, has_calls=has_calls)
        self._start, self._channel, self._message, *ends = marks
        self._ends, self._begins = "".join(ends), dict.fromkeys(Kind, self._start)
        self._given = prompt_end
        """The head of a message that has begun, as far as the prompt has it."""
        self._has_words = False
        """Whether something was said between messages."""
        if prompt_end is not None and self._message in prompt_end:
            self._begin_body(prompt_end.partition(self._message)[0])

    def _between(self, final: bool) -> bool:
        if self._given is None and not self._text.startswith(self._start):
            return self._words(final)
        behind_start = 0 if self._given is not None else 1
        message, again = self._text.find(self._message), self._text.find(self._start, behind_start)
        if message < 0 or 0 <= again < message:
            if again < 0 and not final:
                return False
            self._take(Kind.CONTENT, len(self._text) if again < 0 else again)
            self._given = None
            return True
        head = (self._given or "") + self._text[behind_start:message]
        function = _FUNCTION.search(head)
        if function and self._has_calls:
            return self._call(function[1], message + 1, final)
        self._take(Kind.CONTENT if function else Kind.OWN, message + 1)
        self._begin_body(head)
        return True

    def _words(self, final: bool) -> bool:
        """What is said between messages."""
        start = self._text.find(self._start)
        words = self._text if start < 0 else self._text[:start]
        self._has_words |= bool(words.strip())
        if start < 0 and not final and not self._has_words:
            return False
        self._take(Kind.CONTENT if self._has_words else Kind.OWN, len(words))
        return start >= 0

    def _begin_body(self, head: str) -> None:
        channel = head.partition(self._channel)[2].split()
        self._within = Kind.REASONING if channel[:1] == ["analysis"] else Kind.CONTENT
        self._given, self._has_words = None, False

    def _call(self, name: str, start: int, final: bool) -> bool:
        end = self._first(self._start + self._ends, start)
        if end < 0 and not final:
            return False
        self._given, self._has_words = None, False
        if end < 0 or self._text[end] == self._start:
            self._take(Kind.CONTENT, len(self._text) if end < 0 else end)
        else:
            body = self._plain(self._text[start:end])
            self._take_call(end + 1, lambda: call_of(name, arguments_of(body)))
        return True


class InklingParser(SegmentedParser):
    """Inkling's: each message begins with the mark of its kind, or is a call, `NAME<|content_invoke_tool_json|>{…}`;
    `<|end_message|>` ends it."""

    def __init__(self, alphabet: Alphabet, marks: Sequence[str], *, thinking: bool, has_calls: bool) -> None:
        """`marks` are the format's, as its description orders them. `thinking`: whether the prompt opened a thought."""
        super().__init__(alphabet, has_calls=has_calls)
        model, said, thought, self._end, *invokes = marks
        self._kinds = {model: Kind.OWN, said: Kind.CONTENT, thought: Kind.REASONING}
        self._ends, self._invokes = self._end, "".join(invokes)
        self._begins = {Kind.REASONING: invokes[0] if has_calls else "", Kind.CONTENT: ""}
        self._within = Kind.REASONING if thinking else Kind.OWN

    def _between(self, final: bool) -> bool:
        if self._text[0] in self._kinds:
            self._within = self._kinds[self._text[0]]
            self._take(Kind.OWN, 1)
            return True
        # A call, or text without the mark of its kind.
        end = self._text.find(self._end)
        invoke = self._first(self._invokes) if self._has_calls else -1
        if end < 0:
            self._take(Kind.CONTENT, len(self._text) if final else 0)
            return final
        if 0 <= invoke < end:
            head, payload = self._plain(self._text[:invoke]).strip(), self._plain(self._text[invoke + 1 : end])
            self._take_call(end, lambda: _INKLING_CALLS.call(payload, {}, head=head))
        else:
            self._take(Kind.CONTENT, end)
        self._take(Kind.OWN, 1)
        return True
