"""A turn: as a generation makes it, as it is committed, and as memory holds it. Pure."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import cycle, groupby
from typing import Annotated, Any, Final, Self

import msgspec

from rolloutfleet_proxy.domain.branching import BranchReason
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.sampling import Sampling
from rolloutfleet_proxy.domain.tree import Node

REASONING: Final = "reasoning_content"
CONTENT: Final = "content"
SAID: Final = (REASONING, CONTENT)
"""The fields of an output that hold text, in the order in which most outputs have them."""


class Extras(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What else is known of a turn; its JSON is in the row, where there is any of it."""

    sampling: Sampling | None = None
    """What it was sampled with; None in rows of earlier versions."""
    constrained: str | None = None
    """The kind of grammar that it was sampled under, one of `engine.generation.GRAMMARS`."""
    biased_by: list[str] | None = None
    """The sampling parameters that may have changed the distribution that its log-probabilities are of, of
    `engine.generation.BIASES`."""
    cached_tokens: int | None = None
    """How many tokens of its prompt the engine had in its cache, where it said so."""
    top_logprobs: Sequence[Sequence[tuple[float, int]]] | None = None
    """For each token the likeliest ones as (log-probability, id), where they were asked for."""
    stripped: list[str] | None = None
    """What was taken out of its request as noise (`dialects.base.TurnRequest`)."""
    placeholders: int = 0
    """How many images of its prompt a text stands for."""
    special_tokens_in_text: int = 0
    """The number of control tokens that are text in what its request adds to its parent (`tokens.control_tokens`)."""
    stop_sequence: str | None = None
    """The stop string that ended it, if one did."""
    parts: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None
    """How many characters of reasoning came, then of text, then of reasoning again, and so on; None where that is all
    of the reasoning and then all of the text."""
    own_messages: int = 0
    """How many of its request's first messages were that call's alone (`dialects.base.TurnRequest`)."""
    kept: dict[str, Any] | None = None
    """What its dialect needs to show it again."""
    timing: Sequence[float] | None = None
    """Seconds of each of `telemetry.phases.BEFORE_COMMIT`; None in rows of earlier versions."""
    hidden: bool = False
    """Its dialect shows it no more, and no call goes on from it by name; it is trained all the same."""

    def encode(self) -> bytes | None:
        """As JSON, which `decode` reads; None of nothing."""
        return _encode(self) if self != _NOTHING else None

    @staticmethod
    def decode(data: bytes | str | None) -> "Extras":
        return _NOTHING if data is None else msgspec.json.decode(data, type=Extras)


_NOTHING: Final = Extras()
_encode = msgspec.json.Encoder().encode


def shown_facts(extras: Extras, branch_reason: BranchReason | None, lineage: Lineage) -> dict[str, Any]:
    """What is said of a turn wherever one is shown, in the order of `wire.TurnFacts`."""
    return {
        "branch_reason": branch_reason,
        "constrained": extras.constrained,
        "biased_by": extras.biased_by,
        "stripped": extras.stripped,
        "placeholders": extras.placeholders,
        "special_tokens_in_text": extras.special_tokens_in_text,
        "lineage": lineage,
        "sampling": extras.sampling,
    }


class Delivery(IntEnum):
    """Whether a turn's answer reached anybody, as its row has it.

    Numbers that take one byte each in a row: SQLite then changes a row in its place, however long it is. 0 and 1, which
    take none, are in rows of earlier versions: whether its caller was there when it was committed.
    """

    UNDER_WAY = 2
    """A caller is being given it; so every turn begins. Where that stands in a row and nobody of this process gives it,
    a crash forgot what became of it."""
    ARRIVED = 3
    """Its last byte has left to a caller whose connection was open, or a turn extends it."""
    LOST = 4
    """Nobody got it, and nobody is being given it."""

    @classmethod
    def of_row(cls, noted: int) -> Self:
        """As a row has it, those of earlier versions included."""
        return cls(noted) if noted > 1 else cls.ARRIVED if noted else cls.LOST


def said_in_order(output: Mapping[str, Any], parts: Sequence[int] | None) -> list[tuple[str, str]]:
    """A message's reasoning and text in the order in which they came (`Extras.parts`), each with its field."""
    texts = {field: output.get(field) or "" for field in SAID}
    rest = [(field, len(text)) for field, text in texts.items()]
    found = []
    for field, length in (*zip(cycle(SAID), parts or (), strict=False), *rest):
        text, texts[field] = texts[field][:length], texts[field][length:]
        if text:
            found.append((field, text))
    return found


class Answer(msgspec.Struct, frozen=True):
    """The answer of a turn, and how it ended."""

    output: dict[str, Any]
    """The answer as a message, in the form in which requests have them (`domain.messages`):

        {"role": "assistant", "content": str | None, "reasoning_content"?: str,
         "tool_calls"?: [{"id": str, "type": "function", "function": {"name": str, "arguments": str}}]}

    `content` is None beside tool calls without text, and may be empty without them. `reasoning_content` and
    `tool_calls` are there only where there are some. `arguments` are the JSON text of an object.
    """
    finish_reason: str
    """One of `rolloutfleet.wire.FinishReason`: `length` where the budget was used up, whatever the answer holds; else
    `tool_calls` where it has some; else `stop`, at an end token or a stop string."""
    extras: Extras

    def said(self) -> list[tuple[str, str]]:
        """The output's reasoning and text as they came (`said_in_order`); calls are behind them."""
        return said_in_order(self.output, self.extras.parts)


class Generated(Answer, frozen=True):
    """The result of a generation from a session's messages."""

    session: int
    name: str
    parent: int | None
    messages: list[dict[str, Any]]
    prompt_ids: "array[int]"
    """What follows the parent's prompt and output."""
    prompt_tokens: int
    output_ids: "array[int]"
    logprobs: "array[float]"
    versions: list[tuple[int, int]]
    """(weight version, how many tokens), in order."""
    mixed_cache: bool
    created_at: float
    """Seconds since the epoch at which its call began."""


class NewTurn(Generated, frozen=True):
    """A generation that passed its checks and waits to be committed."""

    delivered: Delivery
    history: bytes
    request: bytes
    body: bytes
    """The digest that retries are found by (`capture.retries.Attempt`)."""
    idempotency_key: str | None
    start: int
    length: int
    matching: Matching
    tools: dict[str, Any] | None
    run: int

    @property
    def new_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def node(self, number: int) -> Node:
        """Its place in its session's tree, once it is committed under this number."""
        return Node(
            turn=number,
            parent=self.parent,
            start=self.start,
            length=self.length,
            history=self.history,
            reasonings=self.matching.reasonings,
            call_ids=self.matching.call_ids,
            lineage=self.matching.lineage,
        )


@dataclass(slots=True)
class Brief:
    """What memory holds of a committed turn, beside its node in the tree."""

    name: str
    digest: bytes
    """That retries are found by."""
    idempotency_key: str | None
    delivered: Delivery
    tokens: int
    """Of its whole prompt and its output: where a child's own prompt ids begin."""

    @classmethod
    def of(cls, new: NewTurn) -> Self:
        return cls(
            name=new.name,
            digest=new.body,
            idempotency_key=new.idempotency_key,
            delivered=new.delivered,
            tokens=new.prompt_tokens + len(new.output_ids),
        )


class Turn(Generated, frozen=True):
    """A committed turn, whole but for its parent's part of the prompt.

    The store alone makes one, when it commits a turn or reads it: whoever holds one may say that it is on disk.
    """

    number: int
    trajectory: int | None
    branch_reason: BranchReason | None
    lineage: Lineage
    reward: float | None

    def versions_by_token(self) -> list[int]:
        return [version for version, tokens in self.versions for _ in range(tokens)]


def spans(versions: list[int]) -> list[tuple[int, int]]:
    """[5, 5, 6] as [(5, 2), (6, 1)]."""
    return [(version, len(list(same))) for version, same in groupby(versions)]
