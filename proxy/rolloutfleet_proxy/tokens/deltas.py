"""A reply as it grows -> what a stream sends: content, reasoning, tool calls.

Joined, the deltas are the message that the whole reply parses to, for every chat format. No format is parsed here: a
format's own parser is asked. Within ordinary text nothing changes channel, so it is asked only where the text meets a
mark (an added token, or a mark that the format writes as text): "if the reply were what came so far, and went on with
this odd word, where would the word stand?" Until the next mark text goes there, but for what could still be taken
away: spaces at the end, and what may be the beginning of a mark or of a stop string.

A tool call leaves whole, once it is complete: until then it may yet turn out to be text.

Some formats let a model think again behind its text. `parts` says in which order reasoning and text came, the same
however the tokens arrive; `parts_of` asks that of a reply that came whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from renderers.tagged import DEEPSEEK_V4_GRAMMAR

from rolloutfleet_proxy.domain.events import Delta, Reasoning, Text, ToolCall
from rolloutfleet_proxy.domain.messages import Message
from rolloutfleet_proxy.domain.turn import CONTENT, REASONING
from rolloutfleet_proxy.tokens.quirks import DROPPED_MARKS, GEMMA_THOUGHT
from rolloutfleet_proxy.tokens.reading import Reader, Scan
from rolloutfleet_proxy.tokens.vocabulary import Run

# Letters of no script, which no format strips or reads.
_PROBE = "\ue000\uf8ff\ue001"
_PROBE_RUN = Run(_PROBE.encode())

# A reply with more marks than this is noise; asking for each would cost the square of their number.
_MOST_SCANS = 400

# Marks inside a tool call, after which neither channel nor number of calls can have changed.
_INNER_MARKS = frozenset(
    ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call_argument_begin|>", "<|constrain|>")
)

# Formats whose whole content may turn out to be a tool call when it begins so.
_CALLS_BEGIN = {"llama-3": "{"}

# Formats in which text becomes a tool call's name by the mark that follows it.
_CALLS_NAMED_BEFORE = {"inkling": "<|content_invoke_tool_json|>"}

_UNKNOWN = "unknown"
_SILENT = "silent"
_decoder = codecs.getincrementaldecoder("utf-8")


class StreamDiverged(Exception):
    """What was streamed is not a prefix of the message that the reply turned out to be."""


class DeltaParser:
    """`feed` the ids of one reply as they come, `finish` with the message. `reader` is `ChatFormat.reader`'s."""

    def __init__(self, reader: Reader, *, stops: Sequence[str] = ()) -> None:
        """`stops` are the request's stop strings: nothing of them is streamed before the end says what they were."""
        vocabulary = reader.vocabulary
        self._reader = reader
        self._vocabulary = vocabulary
        self._text_marks = _text_marks(reader)
        self._longest_text_mark = max(map(len, self._text_marks), default=0)
        self._held_beginnings = (*self._text_marks, *stops)
        self._stops = tuple(stops)
        self._quiet_marks = {vocabulary.convert_tokens_to_ids(mark) for mark in _INNER_MARKS} - {None}
        self._calls_begin = _CALLS_BEGIN.get(reader.name)
        self._dropped_mark = DROPPED_MARKS.get(reader.name)
        self._think_end = _think_end(reader)
        self._after_name = vocabulary.convert_tokens_to_ids(_CALLS_NAMED_BEFORE.get(reader.name, ""))

        self._closed: list[int] = []
        """What lies before the current run of text, packed."""
        self._run = bytearray()
        self._decoder = _decoder("replace")
        self._channel = _UNKNOWN
        self._waiting = ""
        """Text of the run that isn't sent: of unknown channel, or held back."""
        self._sent: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._lengths = [0]
        """Characters sent of reasoning, of content, of reasoning and so on by turns."""
        self._calls: list[dict[str, Any]] = []
        self._scans = 0
        # Where a token's text depends on its neighbours nothing can be said before the end.
        self._holding = not vocabulary.decodes_by_bytes

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """What can be sent after these ids, which follow those fed before."""
        deltas: list[Delta] = []
        marks = self._vocabulary.marks
        if self._holding:
            return deltas
        if len(ids) > 1 and self._holds_text_mark(ids):
            # In pieces, so that each mark that is spelled out is met when it ends.
            half = len(ids) // 2
            return [*self.feed(ids[:half]), *self.feed(ids[half:])]
        if marks.isdisjoint(ids):
            self._text(ids, deltas)
            return deltas
        start = 0
        for position, token_id in enumerate(ids):
            if token_id in marks:
                self._text(ids[start:position], deltas)
                self._mark(token_id, deltas)
                start = position + 1
        self._text(ids[start:], deltas)
        return deltas

    def finish(self, message: Message) -> list[Delta]:
        """The rest of the message. Raises StreamDiverged where what was sent isn't its beginning."""
        deltas: list[Delta] = []
        for channel, field in (("reasoning", REASONING), ("content", CONTENT)):
            text = message.get(field) or ""
            sent = "".join(self._sent[channel])
            if not text.startswith(sent):
                raise StreamDiverged(
                    f"{len(sent)} characters of {channel} were sent that the message doesn't begin with"
                )
            self._send(channel, text[len(sent) :], deltas)
        calls = message.get("tool_calls") or []
        if calls[: len(self._calls)] != self._calls:
            raise StreamDiverged(f"the message doesn't begin with the {len(self._calls)} tool calls sent")
        self._send_calls(calls, deltas)
        return deltas

    @property
    def parts(self) -> list[int] | None:
        """In which order what was sent came (`domain.turn.Extras.parts`)."""
        return self._lengths if len(self._lengths) > 2 else None

    def _text(self, ids: Sequence[int], deltas: list[Delta]) -> None:
        if self._holding or not ids:
            return
        data = self._vocabulary.joined_bytes(ids)
        self._run += data
        if self._channel is _SILENT and not self._text_marks:
            return
        self._waiting += self._decoder.decode(data)
        end = self._end_of_text_mark() if self._text_marks else 0
        if end:
            self._scan_and_send(deltas)
            self._channel, self._waiting = _UNKNOWN, self._waiting[end:]
        if self._channel is _UNKNOWN:
            # A channel's leading spaces may be dropped: the parser says, once there is more than spaces.
            if self._waiting and not self._waiting.isspace():
                self._probe(deltas)
        elif self._channel is _SILENT:
            self._waiting = self._waiting[-self._longest_text_mark :]
        else:
            self._waiting = self._send_safe(self._channel, self._waiting, deltas)

    def _holds_text_mark(self, ids: Sequence[int]) -> bool:
        """Whether a mark that is spelled out ends somewhere in these tokens."""
        if not self._text_marks:
            return False
        text = self._waiting.encode() + self._vocabulary.joined_bytes(ids)
        return any(mark.encode() in text for mark in self._text_marks)

    def _end_of_text_mark(self) -> int:
        """Where the last mark in the waiting text ends; 0 where there is none."""
        found = [(self._waiting.rfind(mark), len(mark)) for mark in self._text_marks]
        return max((start + length for start, length in found if start >= 0), default=0)

    def _mark(self, token_id: int, deltas: list[Delta]) -> None:
        if self._holding:
            return
        if self._run:
            self._closed.append(Run(bytes(self._run)))
            self._run = bytearray()
            self._decoder = _decoder("replace")
        self._closed.append(token_id)
        self._waiting = ""
        if token_id in self._quiet_marks and self._channel is _SILENT:
            return
        self._channel = _UNKNOWN
        self._scan_and_send(deltas)

    def _scan_and_send(self, deltas: list[Delta]) -> None:
        """Send what a channel that may have just ended still holds, and calls that are now complete."""
        so_far = self._so_far()
        scan = self._scan(so_far)
        if scan is None:
            return
        self._send_channel("reasoning", scan.reasoning, deltas)
        self._send_channel("content", scan.content, deltas)
        if len(scan.tool_calls) > len(self._calls) and self._are_settled(scan, so_far):
            self._send_calls(scan.tool_calls, deltas)

    def _probe(self, deltas: list[Delta]) -> None:
        """Ask where text stands now, and send what stands before it."""
        scan = self._scan([*self._so_far(), _PROBE_RUN])
        if scan is None:
            return
        self._channel, self._waiting = _SILENT, ""
        for channel, text in (("reasoning", scan.reasoning), ("content", scan.content)):
            if text.endswith(_PROBE):
                rest = self._send_channel(channel, text[: -len(_PROBE)], deltas)
                if rest is not None:
                    self._channel, self._waiting = channel, rest
            else:
                rest = self._send_channel(channel, text, deltas)
                if rest and rest.isspace() and channel == "reasoning" and not self._may_stop(text):
                    # No format that has kept spaces there takes them away once text stands behind them.
                    self._send(channel, rest, deltas)

    def _so_far(self) -> list[int]:
        """All that came, packed, but for the first bytes of a character whose last haven't come."""
        unfinished = len(self._decoder.getstate()[0])
        complete = bytes(self._run[: len(self._run) - unfinished])
        return [*self._closed, Run(complete)] if complete else list(self._closed)

    def _scan(self, packed: list[int]) -> Scan | None:
        self._scans += 1
        if self._scans <= _MOST_SCANS:
            try:
                scan = self._reader.scan(packed)
                if self._after_name is not None and scan.content:
                    named = self._reader.scan([*packed, self._after_name])
                    stays = named.content if scan.content.startswith(named.content) else ""
                    scan = replace(scan, content=stays)
                return scan
            except Exception:  # a parser may fail on what no model is expected to write; the end will tell
                pass
        self._holding = True
        return None

    def _are_settled(self, scan: Scan, so_far: list[int]) -> bool:
        """Whether the calls stand if the reasoning's end, which a call can stand for, comes after all."""
        closed = self._scan([*so_far, *self._think_end])
        return closed is not None and closed.tool_calls == scan.tool_calls

    def _send_channel(self, channel: str, text: str, deltas: list[Delta]) -> str | None:
        """Send what is new of a channel's text; answers what is held back of it, None where all of it is."""
        if channel == "content" and self._calls_begin and text.lstrip().startswith(self._calls_begin):
            return None
        sent = "".join(self._sent[channel])
        if not text.startswith(sent):
            self._holding = True
            return None
        return self._send_safe(channel, text[len(sent) :], deltas)

    def _send_safe(self, channel: str, text: str, deltas: list[Delta]) -> str:
        """Send what nothing that follows can take away; answers the rest."""
        end = len(text)
        for stop in self._stops:
            found = text.find(stop)
            if found >= 0:
                self._holding = True
                end = min(end, found)
        if not self._holding:
            end -= max((_overlap(text, beginning) for beginning in self._held_beginnings), default=0)
        safe = text[:end].rstrip()
        if channel == "content" and safe == self._dropped_mark and not self._sent["content"]:
            return text  # a parser drops it where reasoning follows
        self._send(channel, safe, deltas)
        return text[len(safe) :]

    def _may_stop(self, text: str) -> bool:
        """Whether a stop string may have begun at the text's end."""
        return any(_overlap(text, stop) for stop in self._stops)

    def _send(self, channel: str, text: str, deltas: list[Delta]) -> None:
        if not text:
            return
        self._sent[channel].append(text)
        if (channel == "content") == len(self._lengths) % 2:
            self._lengths.append(0)
        self._lengths[-1] += len(text)
        deltas.append(Text(text) if channel == "content" else Reasoning(text))

    def _send_calls(self, calls: list[dict[str, Any]], deltas: list[Delta]) -> None:
        for index in range(len(self._calls), len(calls)):
            function = calls[index]["function"]
            deltas.append(ToolCall(index, calls[index]["id"], function["name"], function["arguments"]))
            self._calls.append(calls[index])


def parts_of(reader: Reader, ids: Sequence[int], message: Message, *, stops: Sequence[str] = ()) -> list[int] | None:
    """`DeltaParser.parts` of a whole reply, which is this message."""
    parser = DeltaParser(reader, stops=stops)
    try:
        parser.feed(ids)
        parser.finish(message)
    except StreamDiverged:
        return None
    return parser.parts


def has_usual_order(reader: Reader, ids: Sequence[int], message: Message, *, stops: Sequence[str] = ()) -> bool:
    """Whether it is plain that `parts_of` says nothing: for most replies a search in their text tells."""
    reasoning, content = message.get(REASONING), message.get(CONTENT)
    if not reasoning or not content:
        return True
    if reasoning[-1].isspace() or any(_overlap(reasoning, each) for each in (*_text_marks(reader), *stops)):
        return False  # its end may be held back until more has been sent
    text, thought = reader.vocabulary.joined_bytes(ids), reasoning.encode()
    start = text.find(thought)
    once = start >= 0 and text.find(thought, start + 1) < 0
    return once and text.find(content.encode()) >= start + len(thought)


def _overlap(text: str, beginning: str) -> int:
    """How many of the text's last characters `beginning` (not the whole of it) begins with."""
    for length in range(min(len(text), len(beginning) - 1), 0, -1):
        if text.endswith(beginning[:length]):
            return length
    return 0


def _text_marks(reader: Reader) -> tuple[str, ...]:
    """Marks that the format writes in ordinary tokens."""
    marks = [mark for mark in ("<think>", "</think>") if reader.vocabulary.convert_tokens_to_ids(mark) is None]
    if reader.name == "deepseek-v4":
        marks += DEEPSEEK_V4_GRAMMAR.text_markers
    if reader.name == "gemma4":
        marks.append(GEMMA_THOUGHT)
    return tuple(marks)


def _think_end(reader: Reader) -> list[int]:
    token_id = reader.vocabulary.convert_tokens_to_ids("</think>")
    return [Run(b"</think>") if token_id is None else token_id]
