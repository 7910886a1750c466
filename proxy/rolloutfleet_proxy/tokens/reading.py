"""Reading a reply: output ids -> a message in OpenAI's form, whole or as it grows.

There is one reader, which is fed with tokens as they come; a whole reply is fed at once. So what was streamed is the
message that is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, Final

from rolloutfleet_proxy.domain.events import Delta, Reasoning, Text, ToolCall
from rolloutfleet_proxy.domain.messages import Message
from rolloutfleet_proxy.domain.turn import CONTENT, REASONING, said_in_order
from rolloutfleet_proxy.tokens import reply_parsers as parsers
from rolloutfleet_proxy.tokens.call_reading import Kind, Piece, WrittenCall
from rolloutfleet_proxy.tokens.call_syntax import MARK, SYNTAXES, Syntax, Thinking, of_template, rewritten
from rolloutfleet_proxy.tokens.reply_text import Alphabet, ReplyText
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary

_TAIL_TOKENS: Final = 64
"""A prompt's end, behind the last mark of an answer, is a few tokens; this many hold it, letter by letter."""
_OF_MESSAGES: Final = {"gpt-oss": parsers.HarmonyParser, "inkling": parsers.InklingParser}


class StreamDiverged(Exception):
    """A stream that is not the beginning of what its reply turned out to be."""


@dataclass(frozen=True, slots=True)
class Reply:
    message: Message
    parts: list[int] | None
    """In which order reasoning and content came, where that is not the usual one (`domain.turn.Extras.parts`)."""


class ReplyFormat:
    """How a chat format's replies are read in one vocabulary."""

    def __init__(self, name: str, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        """`ends` are the tokens that end a reply."""
        self._name = name
        convert = vocabulary.convert_tokens_to_ids
        self.syntax = SYNTAXES.get(name) or of_template(vocabulary.files.template, convert)
        around = [*(self.syntax.think or ()), *MARK.findall(self.syntax.header), *self.syntax.begins]
        ends = [each for each in ends if name != "gpt-oss" or each != convert("<|call|>")]
        dropped = map(convert, vocabulary.all_special_tokens) if name == "default" else ()
        self._alphabet = Alphabet(vocabulary, (*self.syntax.marks, *around), ends, dropped)
        self._written: Syntax = rewritten(self.syntax, self._alphabet.written)
        self._tagged = lru_cache(None)(self._tagged_for)
        self._begins = frozenset(map(convert, self.syntax.begins)) - {None}
        self._text = lru_cache(self._alphabet.text)
        self.behind_end = vocabulary.encode(self.syntax.behind_end)
        self._thought_end = vocabulary.encode((self.syntax.think or ("", ""))[1])
        same = list(map(convert, self.syntax.same_ends))
        self._same_end = dict.fromkeys(same, *same[:1])

    def thinking(self, prompt_ids: Sequence[int]) -> Thinking:
        """Whether a prompt ends in an open thought, in a closed one, or leaves that to the reply."""
        return self._thinking(self._tail(prompt_ids))

    def _thinking(self, tail: str) -> Thinking:
        # A template of which no answer's mark is known may have users' words in it, but never at its end.
        find: Callable[[str], int] = tail.rfind if self._begins else tail.rstrip().endswith
        opened, closed = map(find, self._written.think or ("\0", "\0"))
        return "free" if opened == closed else "open" if opened > closed else "closed"

    def _tail(self, prompt_ids: Sequence[int]) -> str:
        """A prompt's end, behind the last mark of an answer: one of few texts."""
        tail = tuple(prompt_ids[-_TAIL_TOKENS:])
        begin = next((place for place in reversed(range(len(tail))) if tail[place] in self._begins), None)
        return self._text(tail) if begin is None else self._text(tail[begin:])[1:]

    def reader(self, prompt_ids: Sequence[int], tools: Sequence[Any] | None, *, thinks: bool, seed: bytes) -> Reader:
        """What reads the reply to one prompt.

        `tools` are those that the model is told of: where there are none, nothing is a call. `thinks` is the template
        argument `enable_thinking`. The same `seed` gives the same ids of calls.
        """
        tail = self._tail(prompt_ids)
        thinking = self._thinking(tail)
        parser = partial(self._parser, tail, thinking, tools or (), thinks)
        expects_space = thinking != "free" or self.syntax.lead
        before: Kind = "own" if expects_space and not tail[-1:].isspace() else "call"
        return Reader(self._alphabet, parser, self.syntax, before, seed)

    def with_thought_ended(self, output: list[int]) -> list[int]:
        """A reply whose last token ends its turn, with a thought ended before that, for a bridge that refused it.

        The bridges of `renderers` 0.1.12 refuse a reply that ends its turn in an open thought, GLM-4.5's also one that
        has none, and Gemma 4's one of its end tokens. Most formats drop reasoning where they render it anew, so the
        next turn would begin a branch. What a format writes behind an end token is the same whether a thought before it
        was ended or not. So only what the bridge adds is taken: to the prompt nothing is added that the model did not
        sample.
        """
        return [*output[:-1], *self._thought_end, self._same_end.get(output[-1], output[-1])]

    def _parser(self, tail: str, thinking: Thinking, tools: Sequence[Any], thinks: bool) -> parsers.ReplyParser:
        if of_messages := _OF_MESSAGES.get(self._name):
            return of_messages(self._alphabet, self._written.marks, prompt_end=tail, has_calls=bool(tools))
        thinks = thinks or self.syntax.thinks_unasked
        declared = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        tagged = self._tagged(bool(tools), thinks)
        return parsers.TaggedParser(tagged, thinking=thinks and thinking == "open", tools=declared)

    def _tagged_for(self, has_calls: bool, thinks: bool) -> parsers.Tagged:
        syntax = self._written if thinks else replace(self._written, think=None)
        return parsers.Tagged(syntax, self._alphabet, calls=has_calls)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the reply to one prompt, any number of times."""

    alphabet: Alphabet
    parser: Callable[[], parsers.ReplyParser]
    syntax: Syntax
    before: Kind
    """What stands before the reply: `own` where the template's white space behind that is yet to come."""
    seed: bytes

    def read(self, output_ids: Sequence[int], *, stop: str | None = None) -> Reply:
        """A whole reply. `stop` is the stop string that ended the generation: it and what follows it is no part."""
        growing = GrowingReply(self, stops=() if stop is None else (stop,))
        growing.feed(output_ids)
        return growing.whole(stop)


class GrowingReply:
    """A reply as it grows: `feed` the ids as they come, `finish` with the reply."""

    def __init__(self, reader: Reader, *, stops: Sequence[str] = (), stop_token_ids: Sequence[int] = ()) -> None:
        """`stops` are the request's stop strings, `stop_token_ids` its stop tokens: nothing of them is sent before the
        end says what they were."""
        self._reader = reader
        self._text = ReplyText(reader.alphabet)
        self._parser = reader.parser()
        self._stops = [each for stop in stops for each in reader.alphabet.holding(stop)]
        self._waiting = ""
        """Text that is, or may become, one."""
        self._stop_token_ids = frozenset(stop_token_ids)
        self._last: list[int] = []
        """The last id, where it is one of these."""
        self._said: dict[Kind, _Said] = {"reasoning": _Said(), "content": _Said()}
        self._kind = reader.before
        """Of the piece that came last."""
        self._called = False
        """Whether a piece of calls has come."""
        self._lengths = [0]
        """Characters of reasoning, of content, of reasoning and so on by turns."""
        self._calls: list[dict[str, Any]] = []

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """What can be sent after these ids, which follow those fed before."""
        if self._stop_token_ids:
            ids = [*self._last, *ids]
            self._last = [ids.pop()] if ids and ids[-1] in self._stop_token_ids else []
        text = self._text.feed(ids)
        return self._deltas(self._parser.feed(self._without_stops(text) if self._stops else text))

    def finish(self, reply: Reply) -> list[Delta]:
        """The rest of the reply, in its order. Raises StreamDiverged where what was sent isn't its beginning."""
        deltas: list[Delta] = []
        sent = sum(self._lengths)
        for field, text in said_in_order(reply.message, reply.parts):
            self._send("content" if field == CONTENT else "reasoning", text[sent:], deltas)
            sent = max(sent - len(text), 0)
        for call in reply.message.get("tool_calls", [])[len(self._calls) :]:
            self._send_call(call, deltas)
        if self._reply() != reply:
            raise StreamDiverged("what was sent is not its beginning")
        return deltas

    def whole(self, stop: str | None) -> Reply:
        """The reply, of which all was fed."""
        rest = self._waiting + self._text.finish()
        if stop is not None and (found := max(map(rest.rfind, self._reader.alphabet.holding(stop)))) >= 0:
            rest = rest[:found]
        self._deltas([*self._parser.feed(rest), *self._parser.finish()])
        self._end("reasoning", self._reader.syntax.around_reasoning[1], [])
        if not self._calls:
            self._end("content", self._reader.syntax.behind_content, [])
        return self._reply()

    def _reply(self) -> Reply:
        """The reply as it was sent so far."""
        reasoning, content = ("".join(said.sent) for said in self._said.values())
        message: Message = {"role": "assistant", CONTENT: content or (None if self._calls else "")}
        if reasoning:
            message[REASONING] = reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        return Reply(message, self._lengths if len(self._lengths) > 2 else None)

    def _without_stops(self, text: str) -> str:
        """Text that is no stop string and can't become one, with what waited before it."""
        self._waiting += text
        found = [place for place in map(self._waiting.find, self._stops) if place >= 0]
        begun = max(parsers.overlap(self._waiting, stop) for stop in self._stops)
        safe = min(found) if found else len(self._waiting) - begun
        text, self._waiting = self._waiting[:safe], self._waiting[safe:]
        return text

    def _deltas(self, pieces: Sequence[Piece]) -> list[Delta]:
        deltas: list[Delta] = []
        for kind, text, call in pieces:
            if kind != self._kind:
                self._turn_to(kind, deltas)
            if kind in self._said:
                self._send(kind, self._said[kind].add(text), deltas)
            if call is not None:
                self._send_call(self._in_api_form(call), deltas)
        return deltas

    def _turn_to(self, kind: Kind, deltas: list[Delta]) -> None:
        """A piece of another kind than the last comes."""
        syntax = self._reader.syntax
        if self._kind == "reasoning":
            self._end("reasoning", syntax.around_reasoning[1], deltas)
        elif self._kind == "content" and self._said["content"].sent and not self._called:
            self._end("content", syntax.before_calls if kind == "call" else "", deltas)
        elif self._kind == "own" and kind in self._said:
            self._said[kind].lead = syntax.around_reasoning[0] if kind == "reasoning" else syntax.gap
        self._kind, self._called = kind, self._called or kind == "call"

    def _end(self, kind: Kind, own: str, deltas: list[Delta]) -> None:
        self._send(kind, self._said[kind].end(own), deltas)

    def _send(self, kind: Kind, text: str, deltas: list[Delta]) -> None:
        if not text:
            return
        self._said[kind].sent.append(text)
        if (kind == "content") == len(self._lengths) % 2:
            self._lengths.append(0)
        self._lengths[-1] += len(text)
        deltas.append(Text(text) if kind == "content" else Reasoning(text))

    def _send_call(self, call: dict[str, Any], deltas: list[Delta]) -> None:
        function = call["function"]
        deltas.append(ToolCall(len(self._calls), call["id"], function["name"], function["arguments"]))
        self._calls.append(call)

    def _in_api_form(self, call: WrittenCall) -> dict[str, Any]:
        call_id = call.id
        if not call_id or any(call_id == other["id"] for other in self._calls):
            number = len(self._calls).to_bytes(4, "big")
            call_id = "call_" + blake2b(self._reader.seed + number, digest_size=12).hexdigest()
        return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class _Said:
    """Reasoning or content as it grows, without the white space at its ends that the template writes, or a part of that
    where a model writes less."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.lead = ""
        """What the template writes before what comes next."""
        self._space: list[str] = []

    def add(self, text: str) -> str:
        """What is certain of this text and of what was held back before it."""
        while text and self.lead:
            text, self.lead = (text[1:], self.lead[1:]) if text[0] == self.lead[0] else (text, "")
        self._space.append(text)
        if not text or text.isspace():
            return ""
        text = "".join(self._space)
        kept = text.rstrip()
        self._space = [text[len(kept) :]]
        return kept

    def end(self, own: str) -> str:
        """What is certain where this ends, and `own` is what the template writes next."""
        held = "".join(self._space)
        kept = held[: len(held) - parsers.overlap(held, f"{own}\0")]
        self._space = [held[len(kept) :]]
        return kept
