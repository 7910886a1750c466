"""A response that is asked for after its call: what follows from the turn, and from what was kept with it. Pure.

Of the request it repeats the model's name, `instructions`, `metadata` and `previous_response_id`, and `tools` as the
model was told of them. Other fields of the request are those that a request has without them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from rolloutfleet_proxy.dialects.openai_responses import objects
from rolloutfleet_proxy.dialects.openai_responses.request import Echo
from rolloutfleet_proxy.dialects.openai_responses.tools import Declared
from rolloutfleet_proxy.domain.matching import OwnMessages
from rolloutfleet_proxy.domain.turn import Turn

_encode: Final = msgspec.json.Encoder().encode


class _Kept(Struct, frozen=True):
    """`ResponsesRequest.kept`; nothing of it for turns of other dialects."""

    model: str | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    declared: dict[str, Declared] = {}


def shown(turn: Turn, beginning: OwnMessages, *, model: str) -> bytes:
    """The body of an answer; `beginning` is the turn that the conversation begins with, `model` the fleet's name."""
    kept = msgspec.convert(turn.extras.kept or {}, _Kept)
    echo = Echo(
        instructions=beginning.messages[0]["content"] if turn.extras.own_messages else None,
        metadata=kept.metadata,
        previous_response_id=kept.previous_response_id,
        text=None if turn.extras.constrained else Echo.TEXT,
    )
    response = objects.response_object(
        turn.name,
        turn.created_at,
        kept.model or model,
        echo=echo,
        tools=[_flat(tool) for tool in beginning.args.tools or ()],
        status=objects.status_of_turn(turn),
        output=list(objects.output_items(turn, kept.declared, [])),
        usage=objects.usage_of(turn),
    )
    return _encode(response)


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as this API declares it."""
    return {"type": "function", "strict": None, "parameters": None, **tool["function"]}
