"""A turn as a stream: what the engine's tokens say as they come, and the end once the turn is committed."""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutfleet_proxy.chat.answer import Answers, AnswerStream
from rolloutfleet_proxy.domain.errors import InternalError
from rolloutfleet_proxy.engines.evidence import Reason, Refused
from rolloutfleet_proxy.engines.reply_stream import Chunk
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.tokens.deltas import DeltaParser, StreamDiverged
from rolloutfleet_proxy.turns.rows import Turn


class TurnStream:
    """Writes a call's events. Nothing that it writes before `end` says how the turn ends."""

    def __init__(
        self,
        call: Call,
        answers: Answers,
        events: AnswerStream,
        parser: DeltaParser,
        *,
        vocabulary_size: int,
        with_logprobs: bool,
    ) -> None:
        self._call = call
        self._answers = answers
        self._events = events
        self._parser = parser
        self._vocabulary_size = vocabulary_size
        self._with_logprobs = with_logprobs
        self._opened = False

    def feed(self, chunk: Chunk) -> None:
        """Send what new tokens say. Raises Refused for an id that is none of the model's: no parser may see it."""
        self._check(chunk.output_ids)
        for row in chunk.top_logprobs or ():
            self._check([token_id for _, token_id in row])
        logprobs = None
        if self._with_logprobs and chunk.logprobs is not None:
            logprobs = self._answers.logprobs(chunk.output_ids, chunk.logprobs, chunk.top_logprobs)
        deltas = self._parser.feed(chunk.output_ids)
        if deltas or logprobs:
            self._emit(self._events.deltas(deltas, logprobs))

    def finish(self, message: Mapping[str, Any]) -> None:
        """Send the rest of the message. Raises InternalError where what was sent is no beginning of it."""
        try:
            deltas = self._parser.finish(dict(message))
        except StreamDiverged as error:
            raise InternalError(f"The stream went astray, and nothing was recorded: {error}.") from None
        if deltas:
            self._emit(self._events.deltas(deltas))

    def end(self, turn: Turn) -> None:
        """Send the finish reason, and what follows it."""
        self._emit(self._answers.ending(self._events, turn))

    def _check(self, ids: Sequence[int]) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self._vocabulary_size):
            raise Refused(Reason.OUT_OF_VOCABULARY, "An id of the stream is outside the vocabulary.")

    def _emit(self, event: bytes) -> None:
        if not self._opened:
            self._opened = True
            event = self._events.opening() + event
        self._call.emit(event)
