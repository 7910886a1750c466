"""Parsers of one reply's text: text -> pieces, as the text comes. Incremental, and pure.

Joined, the texts of all pieces are that text, and however it is cut, the pieces say the same. What may still become
another thing is held back: a call in a thought whose end may follow, and the beginnings of marks.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rolloutfleet_proxy.tokens.call_reading import (
    JsonCalls,
    Kind,
    Parameters,
    Piece,
    WrittenCall,
    arguments_of,
    call_of,
)
from rolloutfleet_proxy.tokens.call_syntax import Around, Syntax
from rolloutfleet_proxy.tokens.reply_text import Alphabet

_MOST_HELD: Final = 16
"""Ends within arguments after which a block ends at the first: to look for the right one must not cost a square."""
_FUNCTION: Final = re.compile(r"to=functions\.([^\s<\ud800-\udfff]+)")
_INKLING_CALLS: Final = JsonCalls(("args", "arguments", "parameters"))


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

    def __init__(self, tagged: Tagged, *, thinking: bool, tools: Parameters) -> None:
        """`thinking`: whether the prompt opened a thought. `tools` are the parameters of the declared ones."""
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
            if marks is not None and marks.are_no_part_of(text):
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
        whole = len(self._text) if final else -1
        end = self._text.find(end_mark, self._searched) if begin else whole
        if end < 0:
            self._searched = max(self._searched, len(self._text) - len(end_mark) + 1)
            if final:
                self._take_as_text(len(self._text))
            return final
        body, behind = self._text[len(begin) : end], end + len(end_mark)
        if calls.is_open(body) and len(self._held) < _MOST_HELD:
            self._held.append(behind)
            self._searched = behind
            return True
        try:
            if not calls.quotes and any(self._text[place:].lstrip().startswith(begin) for place in self._held):
                raise ValueError("another call begins in it")
            read = calls.read(body, self._tools, self._plain)
        except (ValueError, RecursionError):
            self._take_as_text(behind)
            return True
        for kind, text, call in (Piece("call", begin), *read, Piece("call", end_mark)):
            self._pieces.append(Piece(kind, self._plain(text), call))
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

    def are_no_part_of(self, text: str) -> bool:
        """Whether a text has no mark, and not the beginning of one at its end."""
        return not (self.first_in(text) or self.begun(text))


def overlap(text: str, mark: str) -> int:
    """How many of the text's last characters `mark` (not the whole of it) begins with."""
    if mark[0] not in text[-len(mark) + 1 :]:
        return 0
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)


def _may_become(text: str, mark: str) -> bool:
    return len(text) < len(mark) and mark.startswith(text)


class SegmentedParser(ReplyParser):
    """What these formats share: a message's body is content or reasoning up to a mark, or a call as a whole."""

    _ends: str
    """The marks that end a message."""
    _begins: Mapping[Kind, str]
    """Those that begin something behind a body of each kind that has no end."""

    def __init__(self, alphabet: Alphabet, *, has_calls: bool) -> None:
        """`has_calls`: whether any are wanted."""
        super().__init__(alphabet, "own")
        self._has_calls = has_calls
        self._breaks = frozenset(alphabet.chars.values())

    def _waits_beyond(self, text: str) -> bool:
        return self.within == "own" and bool(self._text or self._later) and self._breaks.isdisjoint(text)

    def _step(self, final: bool) -> bool:
        if self.within == "own":
            return self._between(final)
        # Text of a body up to the first mark that ends it, and that mark, unless it begins something.
        begins = self._begins[self.within]
        end = self._first(self._ends + begins)
        self._take(self.within, len(self._text) if end < 0 else end)
        if end >= 0:
            self._take("own", 0 if self._text[0] in begins else 1)
            self.within = "own"
        return end >= 0

    @abstractmethod
    def _between(self, final: bool) -> bool:
        """The step where no body has begun."""

    def _first(self, marks: str, start: int = 0) -> int:
        """Where the first of these marks stands; -1 for none."""
        return min((place for place in (self._text.find(mark, start) for mark in marks) if place >= 0), default=-1)

    def _take_call(self, length: int, read: Callable[[], WrittenCall]) -> None:
        try:
            self._take("call", length, read())
        except (ValueError, RecursionError):
            self._take("content", length)


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
        self._ends, self._begins = "".join(ends), {"reasoning": self._start, "content": self._start}
        self._given = prompt_end
        """The head of a message that has begun, as far as the prompt has it."""
        self._has_words = False
        """Whether something was said between messages."""
        if prompt_end is not None and self._message in prompt_end:
            self._begin_body(prompt_end.partition(self._message)[0])

    def _between(self, final: bool) -> bool:
        has_begun = self._given is not None or self._text.startswith(self._start)
        behind_start = 0 if self._given is not None else 1
        message = self._text.find(self._message) if has_begun else -1
        again = self._text.find(self._start, behind_start)
        if message < 0 or 0 <= again < message:  # words between messages, or a head without a body
            words = self._text if again < 0 else self._text[:again]
            self._has_words = has_begun or self._has_words or bool(words.strip())
            if again < 0 and not final and (has_begun or not self._has_words):
                return False
            self._take("content" if self._has_words else "own", len(words))
            self._given = None
            return True
        head = (self._given or "") + self._text[behind_start:message]
        function = _FUNCTION.search(head)
        if function and self._has_calls:
            return self._call(function[1], message + 1, final)
        self._take("content" if function else "own", message + 1)
        self._begin_body(head)
        return True

    def _begin_body(self, head: str) -> None:
        channel = head.partition(self._channel)[2].split()
        self.within = "reasoning" if channel[:1] == ["analysis"] else "content"
        self._given, self._has_words = None, False

    def _call(self, name: str, start: int, final: bool) -> bool:
        end = self._first(self._start + self._ends, start)
        if end < 0 and not final:
            return False
        self._given, self._has_words = None, False
        if end < 0 or self._text[end] == self._start:
            self._take("content", len(self._text) if end < 0 else end)
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
        self._kinds: dict[str, Kind] = {model: "own", said: "content", thought: "reasoning"}
        self._ends, self._invokes = self._end, "".join(invokes)
        self._begins = {"reasoning": invokes[0] if has_calls else "", "content": ""}
        self.within = "reasoning" if thinking else "own"

    def _between(self, final: bool) -> bool:
        if self._text[0] in self._kinds:
            self.within = self._kinds[self._text[0]]
            self._take("own", 1)
            return True
        # A call, or text without the mark of its kind.
        end = behind = self._text.find(self._end)
        invoke = self._first(self._invokes) if self._has_calls else -1
        while 0 <= invoke < behind and _INKLING_CALLS.is_open(self._text[invoke + 1 : behind]):
            behind = self._text.find(self._end, behind + 1)
        if behind < 0 and not (final and end >= 0):
            self._take("content", len(self._text) if final else 0)
            return final
        end = max(end, behind)
        if 0 <= invoke < end:
            head, payload = self._plain(self._text[:invoke]).strip(), self._plain(self._text[invoke + 1 : end])
            self._take_call(end, lambda: _INKLING_CALLS.call(payload, {}, head=head))
        else:
            self._take("content", end)
        self._take("own", 1)
        return True
