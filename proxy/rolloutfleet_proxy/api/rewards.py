"""Rewards over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from rolloutfleet.wire import IDEMPOTENCY_KEY_HEADER, GiveReward, Rewarded
from rolloutfleet_proxy.api.access import ThisProxy, require_session
from rolloutfleet_proxy.sessions import rewards
from rolloutfleet_proxy.sessions.auth import presented_key
from rolloutfleet_proxy.sessions.idempotency import keyed_call, once
from rolloutfleet_proxy.sessions.sessions import Session

router = APIRouter()


@router.post("/sessions/{session_id}/reward")
async def give_reward(
    asked: GiveReward,
    request: Request,
    session: Annotated[Session, Depends(require_session("reward"))],
    proxy: ThisProxy,
) -> Rewarded:
    """Reward a turn, the newest unless one is named; by default that closes a trajectory unless one is named."""
    caller = "admin" if proxy.admin.match(presented_key(request.headers)) else "session"
    call = keyed_call(
        request.headers.get(IDEMPOTENCY_KEY_HEADER),
        scope=f"reward {session.name} {caller}",
        body=asked.model_dump_json().encode(),
    )
    done = await proxy.writer.run(
        lambda transaction: once(
            transaction, call, Rewarded, lambda transaction: rewards.give_reward(transaction, session.id, asked)
        ),
        frees=True,
    )
    return done.model_copy(update={"ordinals": [proxy.owner.ordinal]})
