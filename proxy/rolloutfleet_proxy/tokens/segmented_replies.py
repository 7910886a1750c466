"""A reply's text -> its pieces, for formats in which a reply is several messages, each with a head. Incremental, and
pure."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from rolloutfleet_proxy.tokens.call_reading import JsonCalls, arguments_of, call_of
from rolloutfleet_proxy.tokens.reply_parser import ReplyParser
from rolloutfleet_proxy.tokens.reply_pieces import Kind, WrittenCall
from rolloutfleet_proxy.tokens.reply_text import Alphabet

_FUNCTION: Final = re.compile(r"to=functions\.([^\s<\ud800-\udfff]+)")
_INKLING_CALLS: Final = JsonCalls(("args", "arguments", "parameters"))


class SegmentedParser(ReplyParser):
    """What these formats share: a message's body is content or reasoning up to a mark, or a call as a whole."""

    _ends: str
    """The marks that end a message."""
    _begins: Mapping[Kind, str]
    """Those that begin something behind a body of each kind that has no end."""

    def __init__(self, alphabet: Alphabet, marks: Sequence[str], *, has_calls: bool) -> None:
        """`marks` are the format's, as its description orders them; `has_calls`: whether any are wanted."""
        super().__init__(alphabet)
        self._has_calls = has_calls
        self._marks = list(map(alphabet.written, marks))
        self._breaks = frozenset(alphabet.chars.values())
        self._body: Kind | None = None
        """What the text is, within the body of a message that is no call."""

    @property
    def in_thought(self) -> bool:
        return self._body is Kind.REASONING

    def _waits_beyond(self, text: str) -> bool:
        return self._body is None and bool(self._text or self._later) and self._breaks.isdisjoint(text)

    def _step(self, final: bool) -> bool:
        return self._between(final) if self._body is None else self._in_body(self._body)

    @abstractmethod
    def _between(self, final: bool) -> bool:
        """The same, where no body has begun."""

    def _in_body(self, kind: Kind) -> bool:
        """Text of a body up to the first mark that ends it, and that mark, unless it begins something."""
        begins = self._begins[kind]
        end = self._first(self._ends + begins)
        self._take(kind, len(self._text) if end < 0 else end)
        if end < 0:
            return False
        self._take(Kind.OWN, 0 if self._text[0] in begins else 1)
        self._body = None
        return True

    def _first(self, marks: str, start: int = 0) -> int:
        """Where the first of these marks stands; -1 for none."""
        return min((place for place in (self._text.find(mark, start) for mark in marks) if place >= 0), default=-1)

    def _take_call(self, call: WrittenCall | None, length: int) -> None:
        self._take(Kind.CONTENT if call is None else Kind.CALL, length, call)


class HarmonyParser(SegmentedParser):
    """gpt-oss's: `<|start|>HEAD<|message|>BODY`, which `<|end|>` or `<|call|>` ends, or the next start.

    See https://github.com/openai/harmony. The channel in a head says what the body is: `analysis` is reasoning. A
    recipient `functions.NAME` makes it a call.
    """

    def __init__(self, alphabet: Alphabet, marks: Sequence[str], *, prompt_end: str | None, has_calls: bool) -> None:
        """`prompt_end`: what stands behind the last start of the prompt; None where there is none."""
        super().__init__(alphabet, marks, has_calls=has_calls)
        self._start, self._channel, self._message, *ends = self._marks
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
        function = _FUNCTION.search(head) if self._has_calls else None
        if function is None:
            self._take(Kind.OWN if self._has_calls or not _FUNCTION.search(head) else Kind.CONTENT, message + 1)
            self._begin_body(head)
            return True
        return self._call(function[1], message + 1, final)

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
        self._body = Kind.REASONING if channel[:1] == ["analysis"] else Kind.CONTENT
        self._given, self._has_words = None, False

    def _call(self, name: str, start: int, final: bool) -> bool:
        end = self._first(self._start + self._ends, start)
        if end < 0 and not final:
            return False
        self._given, self._has_words = None, False
        if end < 0 or self._text[end] == self._start:
            self._take(Kind.CONTENT, len(self._text) if end < 0 else end)
        else:
            self._take_call(call_of(name, arguments_of(self._plain(self._text[start:end]))), end + 1)
        return True


class InklingParser(SegmentedParser):
    """Inkling's: each message begins with the mark of its kind, or is a call, `NAME<|content_invoke_tool_json|>{…}`;
    `<|end_message|>` ends it."""

    def __init__(self, alphabet: Alphabet, marks: Sequence[str], *, thinking: bool, has_calls: bool) -> None:
        """`thinking`: whether the prompt opened a thought."""
        super().__init__(alphabet, marks, has_calls=has_calls)
        model, said, thought, self._end, *invokes = self._marks
        self._kinds = {model: None, said: Kind.CONTENT, thought: Kind.REASONING}
        self._ends, self._invokes = self._end, "".join(invokes)
        self._begins = {Kind.REASONING: invokes[0] if has_calls else "", Kind.CONTENT: ""}
        self._body = Kind.REASONING if thinking else None

    def _between(self, final: bool) -> bool:
        if self._text[0] in self._kinds:
            self._body = self._kinds[self._text[0]]
            self._take(Kind.OWN, 1)
            return True
        # A call, or text without the mark of its kind.
        end = self._text.find(self._end)
        invoke = self._first(self._invokes) if self._has_calls else -1
        if end < 0 and not final:
            return False
        length = len(self._text) if end < 0 else end
        if not 0 <= invoke < end:
            self._take(Kind.CONTENT, length)
        else:
            head, payload = self._plain(self._text[:invoke]).strip(), self._plain(self._text[invoke + 1 : end])
            call = _INKLING_CALLS.call(payload, {}, head=head)
            call = None if call is not None and head not in ("", call.name) else call
            self._take_call(call, end)
        self._take(Kind.OWN, 0 if end < 0 else 1)
        return True
