"""Items that a request names (`item_reference`) instead of sending them. Pure.

What they say is in the answers of earlier turns, which are read once the call has begun. Until then a `Reference` is
one of the pieces that a message's reasoning or text is joined of, or one of its calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from rolloutfleet_proxy.dialects.mistakes import text_of
from rolloutfleet_proxy.dialects.openai_responses.item_ids import items_of, kind_of_item, made_by, turn_of_item
from rolloutfleet_proxy.domain.errors import InvalidParameter
from rolloutfleet_proxy.domain.messages import Message
from rolloutfleet_proxy.domain.turn import SAID, Answer


class Reference(Struct, frozen=True):
    """An item by its id, and where the request names it."""

    id: str
    at: str

    @property
    def kind(self) -> str:
        return kind_of_item(self.id)


def read_reference(item: Mapping[str, Any], at: str) -> Reference:
    """Raises MissingParameter, and InvalidParameter for an id that no item can have."""
    reference = Reference(text_of(item, "id", at=at), at)
    if made_by(reference.id) is None:
        raise _not_found(reference)
    return reference


def turns_of(references: Iterable[Reference]) -> tuple[str, ...]:
    """The names of the turns whose items these are."""
    return tuple(dict.fromkeys(turn_of_item(each.id) for each in references))


def joined(pieces: Sequence[str | Reference]) -> Any:
    """The text of a message, or the pieces of one that lacks some yet."""
    return list(pieces) if any(type(each) is Reference for each in pieces) else "".join(cast("Sequence[str]", pieces))


def filled(messages: Iterable[Message], answers: Mapping[str, Answer]) -> list[Message]:
    """The messages with what the items say in their places, taken from the answers of turns by their names.

    Raises InvalidParameter for an item that none of them has.
    """
    items = {name: said for turn, answer in answers.items() for name, said in items_of(turn, answer)}

    def said(piece: Any) -> Any:
        if type(piece) is not Reference:
            return piece
        if piece.id not in items:
            raise _not_found(piece)
        return items[piece.id]

    def whole(message: Message) -> Message:
        known = {field: [said(each) for each in value] for field, value in message.items() if type(value) is list}
        return message | {field: "".join(value) if field in SAID else value for field, value in known.items()}

    return [whole(message) for message in messages]


def _not_found(reference: Reference) -> InvalidParameter:
    return InvalidParameter(
        f"{reference.at}.id", "No response of this session shows an item of this id: send the item itself."
    )
