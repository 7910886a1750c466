"""Version, recovery, pause and continue over HTTP, and the steps that a leading proxy asks of this one."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from rolloutfleet.wire import JSON_MEDIA_TYPE, LAST_EPOCH, Continue, Epoch, Pause, Recover, Run, SetVersion, Whole
from rolloutfleet.wire import Request as WireRequest
from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy
from rolloutfleet_proxy.api.scopes import PROXY, Scope, credentials
from rolloutfleet_proxy.domain.errors import InvalidRequest
from rolloutfleet_proxy.fleet.members import (
    AT_STAKE_PATH,
    JOIN_PATH,
    RECOVERED_PATH,
    SETTLED_PATH,
    STATE_PATH,
    RemoteMember,
)
from rolloutfleet_proxy.fleet.weights import Member
from rolloutfleet_proxy.http.errors import encode
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.weights.state import Recovery, WeightState

router = APIRouter(dependencies=[AdminOnly])


class Settled(WireRequest):
    """What a leading proxy waits for."""

    epoch: Epoch
    timeout: float


def members(proxy: Proxy, request: Request, scope: str) -> list[Member]:
    """The other proxies that a step covers."""
    if scope == PROXY:
        return []
    caller = credentials(request)
    return [RemoteMember(proxy.peers, ordinal, credentials=caller) for ordinal in proxy.peers.others]


@router.get("/version")
async def show_version(request: Request, proxy: ThisProxy, scope: Scope = PROXY) -> Response:
    """Run, version, epoch and pause. In fleet scope the newest that a proxy knows, and under `proxies` each one's."""
    return _answer(await proxy.fleet_weights.show(members(proxy, request, scope)))


@router.put("/version")
async def set_version(asked: SetVersion, request: Request, proxy: ThisProxy, scope: Scope = PROXY) -> Response:
    """The engines have these weights now. Equal is fine; backwards is 409 with the current version."""
    return _answer(
        await proxy.fleet_weights.advance(members(proxy, request, scope), version=asked.version, epoch=asked.epoch)
    )


@router.post("/recover")
async def recover(asked: Recover, request: Request, proxy: ThisProxy, scope: Scope = PROXY) -> Response:
    """Begin a new run at a checkpoint, which may be older; what is newer is dropped or kept.

    Sessions that earlier runs left open are kept, closed or deleted. To drop what is newer than less than half of the
    fleet's version needs `confirm`, where anything would go; else it is 409 `recovery_too_far`.
    """
    recovery = Recovery(run=asked.run, version=asked.version, newer=asked.newer, open=asked.open)
    return _answer(await proxy.fleet_weights.recover(members(proxy, request, scope), recovery, confirmed=asked.confirm))


@router.post("/pause")
async def pause(request: Request, proxy: ThisProxy, asked: Pause | None = None, scope: Scope = PROXY) -> Response:
    """Stop generation; returns when nothing generates, or (retract, in_place) when every engine has confirmed."""
    asked = asked or Pause()
    return _answer(
        await proxy.fleet_weights.pause(
            members(proxy, request, scope), mode=asked.mode, timeout=asked.timeout, epoch=asked.epoch
        )
    )


@router.post("/continue")
async def go_on(request: Request, proxy: ThisProxy, asked: Continue | None = None, scope: Scope = PROXY) -> Response:
    """Engines go on, then proxies. An older epoch is 409 with the current one."""
    asked = asked or Continue()
    return _answer(await proxy.fleet_weights.resume(members(proxy, request, scope), epoch=asked.epoch))


@router.get(STATE_PATH, include_in_schema=False)
async def state(proxy: ThisProxy) -> dict[str, Any]:
    """What this proxy knows."""
    return proxy.weights.state.as_json()


@router.post(JOIN_PATH, include_in_schema=False)
async def join(told: dict[str, Any], proxy: ThisProxy) -> dict[str, Any]:
    """Take what a leading proxy tells; answers with what is known then, which may be newer."""
    try:
        heard = WeightState.from_json(told)
    except (LookupError, TypeError, ValueError):
        raise InvalidRequest(f"This is no state of a proxy's weights: epochs and runs end at {LAST_EPOCH}.") from None
    return (await proxy.fleet_weights.heard(gate=heard.gate, versions=heard.versions)).as_json()


@router.post(SETTLED_PATH, include_in_schema=False)
async def settled(asked: Settled, proxy: ThisProxy) -> None:
    """Answers when nothing of this proxy generates."""
    await proxy.weights.settled(epoch=asked.epoch, timeout=asked.timeout)


@router.get(AT_STAKE_PATH, include_in_schema=False)
async def at_stake(run: Run, version: Whole, proxy: ThisProxy) -> dict[str, Any]:
    """What a recovery would drop here."""
    return asdict(await proxy.weights.at_stake(run=run, version=version))


@router.get(RECOVERED_PATH, include_in_schema=False)
async def recovered(run: Run, proxy: ThisProxy) -> dict[str, Any]:
    """What a recovery has done here."""
    counts = asdict(await proxy.weights.recovery_counts(run))
    # What is nothing is left out: a leader of an earlier release knows fewer of them.
    return {name: count for name, count in counts.items() if count}


def _answer(answer: dict[str, Any]) -> Response:
    return Response(encode(answer), media_type=JSON_MEDIA_TYPE)
