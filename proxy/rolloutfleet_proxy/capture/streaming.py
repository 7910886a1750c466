"""The engine's tokens as a call's deltas, as they come."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rolloutfleet_proxy.domain.errors import InternalError
from rolloutfleet_proxy.domain.events import Delta, Text, Tokens
from rolloutfleet_proxy.engine.evidence import Reason, Refused
from rolloutfleet_proxy.engine.reply_stream import Chunk
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.tokens.reading import GrowingReply, Reply, StreamDiverged


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStream:
    """Adds deltas to a call's events. None of them says how the turn ends."""

    call: Call
    reply: GrowingReply
    vocabulary_size: int
    with_logprobs: bool

    def feed(self, chunk: Chunk) -> None:
        """Take in new tokens. Raises Refused for an id that is none of the model's: no parser may see it."""
        self._check(chunk.output_ids)
        for row in chunk.top_logprobs or ():
            self._check([token_id for _, token_id in row])
        deltas = self.reply.feed(chunk.output_ids)
        if self.with_logprobs and chunk.logprobs is not None:
            tokens = Tokens(chunk.output_ids, chunk.logprobs, chunk.top_logprobs)
            # Text may be held back whose tokens are there.
            first: Delta = deltas[0] if deltas else Text("")
            deltas = [replace(first, tokens=tokens), *deltas[1:]]
        self._emit(deltas)

    def finish(self, reply: Reply) -> None:
        """Add the rest of the reply. Raises InternalError where what was sent is no beginning of it."""
        try:
            self._emit(self.reply.finish(reply))
        except StreamDiverged as error:
            raise InternalError(
                f"What was streamed differs from the reply, and nothing was recorded: {error}."
            ) from None

    def _check(self, ids: Sequence[int]) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self.vocabulary_size):
            raise Refused(Reason.OUT_OF_VOCABULARY, "An id of the stream is outside the vocabulary.")

    def _emit(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self.call.emit(delta)
