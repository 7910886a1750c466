"""Parsers of one reply's text: text -> pieces, as the text comes. Incremental, and pure.

Joined, the texts of all pieces are that text, and however it is cut, the pieces say the same. What may still become
another thing is held back: a call in a thought whose end may follow, and the beginnings of marks.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rolloutfleet_proxy.tokens.call_reading import JsonCalls, Kind, Piece, WrittenCall, arguments_of, call_of
from rolloutfleet_proxy.tokens.call_syntax import Around, Syntax
from rolloutfleet_proxy.tokens.reply_text import Alphabet

_MOST_HELD: Final = 128
"""Ends within arguments after which a block ends at the first: to look for the right one must not cost a square."""
_FUNCTION: Final = re.compile(r"to=functions\.([^\s<\ud800-\udfff]+)")
_JSON: Final = JsonCalls(("args", "arguments", "parameters"))


class ReplyParser(ABC):
    """Fed with one reply's text as it comes. A format takes pieces off the text in steps."""

    def __init__(self, alphabet: Alphabet, within: Kind) -> None:
        self._plain = alphabet.plain
        self.within = within
        """Kind of the text up to the next mark: a call's until its end has come, `own` where that is yet to be seen."""
        self._text = ""
        """What is in no piece yet."""
        self._later: list[str] = []
        """Text behind that which waits for a mark, without that mark."""
        self._pieces: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """What is certain after this text, which follows the one fed before."""
        if self._waits_beyond(text):
            self._later.append(text)  # to join it each time would cost the square of a long call
            return []
        return self._advanced(text, final=False)

    def finish(self) -> list[Piece]:
        """The rest, where no more comes."""
        return self._advanced("", final=True)

    @abstractmethod
    def _waits_beyond(self, text: str) -> bool:
        """Whether the text before this one waits for a mark that is not in it."""

    @abstractmethod
    def _step(self, final: bool) -> bool:
        """Take what can be taken off the text; whether there may be more."""

    def _advanced(self, text: str, *, final: bool) -> list[Piece]:
        self._text = "".join([self._text, *self._later, text])
        self._later.clear()
        while self._text and self._step(final):
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def _take(self, kind: Kind, length: int, call: WrittenCall | None = None) -> None:
        if length:
            self._pieces.append(Piece(kind, self._plain(self._text[:length]), call))
            self._text = self._text[length:]


class Tagged:
    """What a format's replies are read by in one vocabulary, with or without calls."""

    def __init__(self, syntax: Syntax, alphabet: Alphabet, *, calls: bool) -> None:
        """`syntax` has its marks as `alphabet` writes them."""
        self.alphabet, self.syntax = alphabet, syntax
        self.open, self.close = syntax.think or ("", "")
        self.calls = syntax.calls if calls else None
        self.around = around = syntax.around if self.calls else Around()
        self.begin, self.end = around.block
        self.sections = around.sections
        self.section_ends = frozenset(self.sections.values())
        thinks_again = (self.open, self.close) if syntax.thinks_again else ()
        before_calls = [*self.sections, *([] if around.needs_begin else [self.begin])]
        ends_thought = before_calls if syntax.call_ends_thought != "never" else []
        self.marks: dict[Kind, _Marks] = {
            "reasoning": _Marks([self.open, self.close, *ends_thought]),
            "content": _Marks([*thinks_again, self.begin, *self.sections, *self.section_ends]),
        }


class TaggedParser(ReplyParser):
    """For one reply. Its steps are those of what the text is."""

    def __init__(self, tagged: Tagged, *, thinking: bool, tools: Mapping[str, Any]) -> None:
        """`thinking`: whether the prompt opened a thought. `tools` are the schemas of the declared ones' arguments, by
        name."""
        super().__init__(tagged.alphabet, "reasoning" if thinking else "own")
        self._format = tagged
        self._tools = tools
        self._lead = [tagged.syntax.header, tagged.syntax.label] if thinking else []
        """What a thought may begin with that is none of it."""
        self._in_draft = False
        """Behind the begin of a call in a thought: a draft, if an end of the thought follows."""
        self._in_section = False
        self._held: list[int] = []
        """Where ends stand in the text that lie within arguments."""
        self._searched = 0
        """Up to where a mark was looked for."""

    def feed(self, text: str) -> list[Piece]:
        if text and not self._text and not self._lead:
            marks = self._format.marks.get(self.within)
            if marks is not None and not marks.first_in(text) and not marks.begun(text):
                return [Piece(self.within, self._plain(text))]
        return super().feed(text) if text else []

    def _waits_beyond(self, text: str) -> bool:
        if self.within == "call":
            return (self._format.end or "\0")[-1] not in text
        return self._in_draft and self._format.close[-1] not in text

    def _step(self, final: bool) -> bool:
        return self._draft(final) if self._in_draft else _STEPS[self.within](self, final)

    # A step takes what it can off the text, and says whether there may be more to take.

    def _start(self, final: bool) -> bool:
        header = self._format.syntax.header
        rest = self._text.removeprefix(header).lstrip()
        may_change = _may_become(self._text, header) or _may_become(rest, self._format.open)
        if not final and (not rest or may_change):
            return False
        if self._format.open and rest.startswith(self._format.open):
            self._take("own", len(self._text) - len(rest) + len(self._format.open))
            self.within, self._lead = "reasoning", [self._format.syntax.label]
        elif self._format.calls is not None and not self._format.begin and rest.startswith("{"):
            self.within = "call"
        else:
            self.within = "content"
        return True

    def _thought(self, final: bool) -> bool:
        while self._lead:
            if not final and _may_become(self._text, self._lead[0]):
                return False
            lead = self._lead.pop(0)
            self._take("own", len(lead) if self._text.startswith(lead) else 0)
        mark = self._next_mark(final)
        if mark in (self._format.open, self._format.close):
            self._take_think_mark(mark)
        elif mark and self._format.syntax.call_ends_thought == "always":
            self.within = "content"
        elif mark:
            self._in_draft, self._searched = True, 0
        return bool(mark)

    def _draft(self, final: bool) -> bool:
        end = self._text.find(self._format.close, self._searched)
        if end < 0 and not final:
            self._searched = max(0, len(self._text) - len(self._format.close) + 1)
            return False
        self._take("reasoning", max(end, 0))
        self.within, self._in_draft = "content" if end < 0 else "reasoning", False
        return True

    def _content(self, final: bool) -> bool:
        mark = self._next_mark(final)
        if not mark:
            return False
        if mark == self._format.begin and (self._in_section or not self._format.around.needs_begin):
            self.within, self._held, self._searched = "call", [], len(mark)
        elif mark in self._format.sections or (mark in self._format.section_ends and self._in_section):
            self._take("call", len(mark))
            self._in_section = mark in self._format.sections
        elif mark in (self._format.open, self._format.close):
            self._take_think_mark(mark)
        else:
            self._take("content", len(mark))
        return True

    def _take_think_mark(self, mark: str) -> None:
        self._take("own", len(mark))
        self.within = "reasoning" if mark == self._format.open else "content"

    def _block(self, final: bool) -> bool:
        begin, end_mark, calls = self._format.begin, self._format.end, self._format.calls
        assert calls is not None
        end = self._text.find(end_mark, self._searched) if begin else len(self._text) if final else -1
        if end < 0:
            self._searched = max(self._searched, len(self._text) - len(end_mark) + 1)
            if final:
                self._take_as_text(len(self._text))
            return final
        behind, since = end + len(end_mark), self._held[-1] if self._held else len(begin)
        if len(self._held) < _MOST_HELD and calls.is_open(self._text[since:end], within=bool(self._held)):
            self._held.append(behind)
            self._searched = behind
            return True
        try:
            if not calls.quotes and any(self._text[place:].lstrip().startswith(begin) for place in self._held):
                raise ValueError("another call begins in it")
            read = calls.read(self._text[len(begin) : end], self._tools, self._plain)
        except (ValueError, RecursionError):
            self._take_as_text(behind)
            return True
        pieces = (Piece("call", begin), *read, Piece("call", end_mark))
        self._pieces += [piece._replace(text=self._plain(piece.text)) for piece in pieces]
        self._text, self.within, self._in_section = self._text[behind:], "content", True
        return True

    def _take_as_text(self, behind: int) -> None:
        """A block that is no call, up to its first end."""
        self._take("content", self._held[0] if self._held else behind)
        self.within = "content"

    def _next_mark(self, final: bool) -> str:
        """The next mark, with the text before it taken; empty where there is none."""
        marks = self._format.marks[self.within]
        match = marks.first_in(self._text)
        unsure = 0 if match or final else marks.begun(self._text)
        self._take(self.within, match.start() if match else len(self._text) - unsure)
        return match.group() if match else ""


_STEPS: Final[Mapping[Kind, Callable[[TaggedParser, bool], bool]]] = {
    "own": TaggedParser._start,
    "reasoning": TaggedParser._thought,
    "content": TaggedParser._content,
    "call": TaggedParser._block,
}


class _Marks:
    """What is looked for in a state."""

    def __init__(self, marks: Iterable[str]) -> None:
        found = sorted(filter(None, marks), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None
        self._spelled = [mark for mark in found if len(mark) > 1]

    def begun(self, text: str) -> int:
        """How many of the text's last characters may be the beginning of a mark."""
        return max((overlap(text, mark) for mark in self._spelled), default=0)

    def first_in(self, text: str) -> re.Match[str] | None:
        """The first mark of a text."""
        if self._pattern is None or (not self._spelled and text.isascii()):
            return None  # ASCII has none of the characters that stand for tokens
        return self._pattern.search(text)


def overlap(text: str, mark: str) -> int:
    """How many of the text's last characters `mark` (not the whole of it) begins with."""
    if mark[0] not in text[-len(mark) + 1 :]:
        return 0
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)


def _may_become(text: str, mark: str) -> bool:
    return len(text) < len(mark) and mark.startswith(text)


class MessagesParser(ReplyParser):
    """For replies of several messages, `START HEAD OPEN BODY END`: the mark that opens a body says what that is. One
    without an end goes on to the next start. What is no head is content.
    """

    def __init__(self, alphabet: Alphabet, start: str, opens: Mapping[str, Kind], ends: str, prompt_end: str) -> None:
        """`prompt_end` is what stands behind the last start of the prompt."""
        super().__init__(alphabet, "own")
        self._start, self._opens, self._stops = start, opens, start + ends
        self._calls = "".join(mark for mark, kind in opens.items() if kind == "call")
        self._breaks = frozenset(alphabet.chars.values())
        self._given: str | None = ""
        """The head of a message that has begun, as far as the prompt has it; None where none has begun."""
        self.feed(prompt_end)
        self._given, self._text = self._text or self._given, ""

    def _read(self, head: str, body: str) -> WrittenCall:
        """A call, its function's name in its head or its body. Raises ValueError or RecursionError where it is none."""
        return _JSON.call(body, {}, head=head.strip())

    def _kinds(self, head: str, mark: str) -> tuple[Kind, Kind]:
        """What a head is, and the body behind it."""
        return "content", self._opens[mark]

    def _waits_beyond(self, text: str) -> bool:
        return self.within == "own" and bool(self._text or self._later) and self._breaks.isdisjoint(text)

    def _step(self, final: bool) -> bool:
        if self.within == "own":
            return self._between(final)
        self._take(self.within, self._first(self._stops + (self._calls if self.within == "reasoning" else "")))
        self.within = "own" if self._text else self.within
        return True

    def _between(self, final: bool) -> bool:
        behind = 1 if self._text[0] == self._start else 0
        place = self._first("".join([self._stops, *self._opens]), behind)
        mark, words = self._text[place : place + 1], self._text[behind:place]
        if not mark and not final:
            return False
        self._given = "" if behind else self._given
        head = (self._given or "") + words
        said, kind = self._kinds(head, mark) if mark in self._opens else ("content", "own")
        if kind == "call":
            return self._call(head, place + 1, final)
        if said == "content" and words.strip():
            self._take("content", place + (mark in self._opens))
        else:
            self._take("own", place + (mark not in ("", self._start)))
        self.within, self._given = kind, None
        return True

    def _call(self, head: str, start: int, final: bool) -> bool:
        first = end = self._first(self._stops, start)
        since = start
        for _ in range(_MOST_HELD):
            is_open = _JSON.is_open(self._text[since:end], within=since > start)
            if self._text[end : end + 1] in ("", self._start) or not is_open:
                break
            since, end = end, self._first(self._stops, end + 1)
        mark, call = self._text[end : end + 1], None
        if not mark and not final:
            return False
        if mark not in ("", self._start):
            with suppress(ValueError, RecursionError):
                call = self._read(self._plain(head), self._plain(self._text[start:end]))
        self._take("content" if call is None else "call", first if call is None else end, call)
        self._given = None
        return True

    def _first(self, marks: str, start: int = 0) -> int:
        """Where the first of these marks stands; the text's end where there is none."""
        found = (self._text.find(mark, start) for mark in marks)
        return min((place for place in found if place >= 0), default=len(self._text))


class HarmonyParser(MessagesParser):
    """gpt-oss's: `<|start|>HEAD<|message|>BODY`, which `<|end|>` or `<|call|>` ends.

    See https://github.com/openai/harmony. The channel in a head says what the body is: `analysis` is reasoning. A
    recipient `functions.NAME` makes it a call.
    """

    def __init__(self, alphabet: Alphabet, marks: Sequence[str], *, prompt_end: str, has_calls: bool) -> None:
        """`marks` are the format's, in the order of its description. `has_calls`: whether any are wanted."""
        start, self._channel, message, *ends = marks
        self._has_calls = has_calls
        super().__init__(alphabet, start, {message: "content"}, "".join(ends), prompt_end)

    def _kinds(self, head: str, mark: str) -> tuple[Kind, Kind]:
        if self._given is None:
            return "content", "content"
        if _FUNCTION.search(head):
            return "content", "call" if self._has_calls else "content"
        return "own", "reasoning" if head.partition(self._channel)[2].split()[:1] == ["analysis"] else "content"

    def _read(self, head: str, body: str) -> WrittenCall:
        function = _FUNCTION.search(head)
        return call_of(function and function[1], arguments_of(body))


class InklingParser(MessagesParser):
    """Inkling's: each message begins with the mark of its kind, or is a call, `NAME<|content_invoke_tool_json|>{…}`."""

    def __init__(self, alphabet: Alphabet, marks: Sequence[str], *, prompt_end: str, has_calls: bool) -> None:
        """`marks` are the format's, as its description orders them. `has_calls`: whether any are wanted."""
        start, said, thought, end, *invokes = marks
        opens: dict[str, Kind] = {said: "content", thought: "reasoning"}
        opens |= dict.fromkeys(invokes if has_calls else (), "call")
        super().__init__(alphabet, start, opens, end, prompt_end)
