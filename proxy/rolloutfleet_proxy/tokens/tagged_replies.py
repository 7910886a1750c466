"""A reply's text -> its pieces, for formats that stand marks around thoughts and calls. Incremental, and pure.

However the text is cut, the pieces say the same. What may still become another thing is held back: a call in a thought
whose end may follow, and the beginnings of marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum, auto
from typing import Final

from rolloutfleet_proxy.tokens.call_reading import CallReader, Parameters
from rolloutfleet_proxy.tokens.call_syntax import Around, Syntax
from rolloutfleet_proxy.tokens.reply_parser import ReplyParser
from rolloutfleet_proxy.tokens.reply_pieces import Kind, Piece
from rolloutfleet_proxy.tokens.reply_text import Alphabet

_MOST_HELD: Final = 16
"""Ends within arguments after which a block ends at the first: to look for the right one must not cost a square."""


class _State(IntEnum):
    START = auto()
    """White space at the most: a thought may begin."""
    THOUGHT = auto()
    DRAFT = auto()
    """Behind the begin of a call in a thought: a draft, if an end of the thought follows."""
    CONTENT = auto()
    BLOCK = auto()


_WAITING: Final = (_State.BLOCK, _State.DRAFT)
_FREE: Final = {_State.THOUGHT: Kind.REASONING, _State.CONTENT: Kind.CONTENT}
"""What text is up to the next mark."""


class Tagged:
    """What a format's replies are read by in one vocabulary, with or without calls."""

    def __init__(self, syntax: Syntax, alphabet: Alphabet, *, calls: bool) -> None:
        written = alphabet.written
        self.alphabet = alphabet
        self.open, self.close = map(written, syntax.think or ("", ""))
        self.header, self.label = written(syntax.header), written(syntax.label)
        self.calls = syntax.calls.within(written) if calls and syntax.calls else None
        around = syntax.around if self.calls else Around()
        self.begin, self.end = map(written, around.block)
        self.needs_section = around.needs_begin
        self.sections = {written(begin): written(end) for begin, end in around.sections.items()}
        self.section_ends = frozenset(self.sections.values())
        self.call_ends_thought = syntax.call_ends_thought
        thinks_again = (self.open, self.close) if syntax.thinks_again else ()
        before_calls = [*self.sections, *([] if self.needs_section else [self.begin])]
        ends_thought = before_calls if self.call_ends_thought != "never" else []
        self.marks = {
            _State.THOUGHT: _Marks([self.open, self.close, *ends_thought]),
            _State.CONTENT: _Marks([*thinks_again, self.begin, *self.sections, *self.section_ends]),
        }


class TaggedParser(ReplyParser):
    """For one reply. Its steps are those of the state that it is in."""

    def __init__(self, tagged: Tagged, *, thinking: bool, tools: Parameters) -> None:
        """`thinking`: whether the prompt opened a thought. `tools` are the parameters of the declared ones."""
        super().__init__(tagged.alphabet)
        self._format = tagged
        self._tools = tools
        self._state = _State.THOUGHT if thinking else _State.START
        self._lead = [tagged.header, tagged.label] if thinking else []
        """What a thought may begin with that is none of it."""
        self._in_section = False
        self._held: list[int] = []
        """Where ends stand in the text that lie within arguments."""
        self._searched = 0
        """Up to where a mark was looked for."""

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        kind = None if self._text or self._lead else _FREE.get(self._state)
        if kind is not None and self._format.marks[self._state].are_no_part_of(text):
            return [Piece(kind, self._plain(text))]
        return super().feed(text)

    @property
    def in_thought(self) -> bool:
        return self._state is _State.THOUGHT

    def _waits_beyond(self, text: str) -> bool:
        return self._state in _WAITING and self._awaited()[-1:] not in text

    def _awaited(self) -> str:
        """The mark that ends a block or a draft."""
        return (self._format.end or "\0") if self._state is _State.BLOCK else self._format.close

    def _step(self, final: bool) -> bool:
        return _STEPS[self._state](self, final)

    # A step takes what it can off the text, and says whether there may be more to take.

    def _start(self, final: bool) -> bool:
        rest = self._text.removeprefix(self._format.header).lstrip()
        may_change = _may_become(self._text, self._format.header) or _may_become(rest, self._format.open)
        if not final and (not rest or may_change):
            return False
        if self._format.open and rest.startswith(self._format.open):
            self._take(Kind.OWN, len(self._text) - len(rest) + len(self._format.open))
            self._state, self._lead = _State.THOUGHT, [self._format.label]
        elif self._format.calls is not None and not self._format.begin and rest.startswith("{"):
            self._state = _State.BLOCK
        else:
            self._state = _State.CONTENT
        return True

    def _thought(self, final: bool) -> bool:
        while self._lead:
            if not final and _may_become(self._text, self._lead[0]):
                return False
            lead = self._lead.pop(0)
            self._take(Kind.OWN, len(lead) if self._text.startswith(lead) else 0)
        mark = self._next_mark(Kind.REASONING, final)
        if mark in (self._format.open, self._format.close):
            self._take_think_mark(mark)
        elif mark and self._format.call_ends_thought == "always":
            self._state = _State.CONTENT
        elif mark:
            self._state, self._searched = _State.DRAFT, 0
        return bool(mark)

    def _draft(self, final: bool) -> bool:
        end = self._text.find(self._format.close, self._searched)
        if end >= 0:
            self._take(Kind.REASONING, end)
            self._state = _State.THOUGHT
        elif final:
            self._state = _State.CONTENT
        else:
            self._searched = max(0, len(self._text) - len(self._format.close) + 1)
        return end >= 0 or final

    def _content(self, final: bool) -> bool:
        mark = self._next_mark(Kind.CONTENT, final)
        if not mark:
            return False
        if mark == self._format.begin and (self._in_section or not self._format.needs_section):
            self._state, self._held, self._searched = _State.BLOCK, [], len(mark)
        elif mark in self._format.sections or (mark in self._format.section_ends and self._in_section):
            self._take(Kind.CALL, len(mark))
            self._in_section = mark in self._format.sections
        elif mark in (self._format.open, self._format.close):
            self._take_think_mark(mark)
        else:
            self._take(Kind.CONTENT, len(mark))
        return True

    def _take_think_mark(self, mark: str) -> None:
        self._take(Kind.OWN, len(mark))
        self._state = _State.THOUGHT if mark == self._format.open else _State.CONTENT

    def _block(self, final: bool) -> bool:
        assert self._format.calls is not None
        if not self._format.begin:
            if final:
                self._read(self._format.calls, len(self._text), len(self._text))
            return final
        end = self._text.find(self._format.end, self._searched)
        if end < 0:
            self._searched = max(self._searched, len(self._text) - len(self._format.end) + 1)
            if final:
                self._take_as_text(len(self._text))
            return final
        behind = end + len(self._format.end)
        if self._format.calls.is_open(self._text[len(self._format.begin) : end]) and len(self._held) < _MOST_HELD:
            self._held.append(behind)
            self._searched = behind
        else:
            self._read(self._format.calls, end, behind)
        return True

    def _read(self, calls: CallReader, end: int, behind: int) -> None:
        start = len(self._format.begin)
        next_begins = not calls.quotes and any(map(self._begins_at, self._held))
        pieces = None if next_begins else calls.read(self._text[start:end], self._tools, self._plain)
        if pieces is None:
            self._take_as_text(behind)
            return
        pieces = [Piece(Kind.CALL, self._format.begin), *pieces, Piece(Kind.CALL, self._format.end)]
        self._pieces += [piece._replace(text=self._plain(piece.text)) for piece in pieces]
        self._text, self._state, self._in_section = self._text[behind:], _State.CONTENT, True

    def _begins_at(self, place: int) -> bool:
        """Whether a call begins there, with white space before it."""
        return self._text[place:].lstrip().startswith(self._format.begin)

    def _take_as_text(self, behind: int) -> None:
        """A block that is no call, up to its first end."""
        self._take(Kind.CONTENT, self._held[0] if self._held else behind)
        self._state = _State.CONTENT

    def _next_mark(self, kind: Kind, final: bool) -> str:
        """The next mark of the state, with the text before it taken; empty where there is none."""
        marks = self._format.marks[self._state]
        match = marks.pattern.search(self._text)
        if match is None:
            self._take(kind, len(self._text) - (0 if final else marks.begun(self._text)))
            return ""
        self._take(kind, match.start())
        return match.group()


_STEPS: Final = {
    _State.START: TaggedParser._start,
    _State.THOUGHT: TaggedParser._thought,
    _State.DRAFT: TaggedParser._draft,
    _State.CONTENT: TaggedParser._content,
    _State.BLOCK: TaggedParser._block,
}


class _Marks:
    """What is looked for in a state."""

    def __init__(self, marks: Iterable[str]) -> None:
        found = sorted(filter(None, marks), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, found)) or "(?!)")
        self._spelled = [mark for mark in found if len(mark) > 1]

    def begun(self, text: str) -> int:
        """How many of the text's last characters may be the beginning of a mark."""
        return max((overlap(text, mark) for mark in self._spelled), default=0)

    def are_no_part_of(self, text: str) -> bool:
        """Whether a text has no mark, and not the beginning of one at its end."""
        if not self._spelled and text.isascii():
            return True
        return self.pattern.search(text) is None and not self.begun(text)


def overlap(text: str, mark: str) -> int:
    """How many of the text's last characters `mark` (not the whole of it) begins with."""
    if mark[0] not in text[-len(mark) + 1 :]:
        return 0
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


def _may_become(text: str, mark: str) -> bool:
    return len(text) < len(mark) and mark.startswith(text)
