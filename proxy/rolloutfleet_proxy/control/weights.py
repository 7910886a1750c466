"""Version, recovery, pause and continue over HTTP, and the steps that a leading proxy asks of this one."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from rolloutfleet.wire import (
    JSON_MEDIA_TYPE,
    LAST_EPOCH,
    Continue,
    Epoch,
    LoadFromDisk,
    Pause,
    Recover,
    Run,
    SetVersion,
    Weights,
    Whole,
)
from rolloutfleet.wire import Request as WireRequest
from rolloutfleet_proxy.cluster.weights import (
    AT_STAKE_PATH,
    JOIN_PATH,
    RECOVERED_PATH,
    SETTLED_PATH,
    STATE_PATH,
    FleetMember,
    RemoteMember,
)
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheServices
from rolloutfleet_proxy.control.scopes import PROXY, Scope, credentials
from rolloutfleet_proxy.domain.errors import InvalidRequest
from rolloutfleet_proxy.domain.weights import Recovery, WeightState
from rolloutfleet_proxy.http.errors import encode

router = APIRouter(dependencies=[AdminOnly])


class Settled(WireRequest):
    """What a leading proxy waits for."""

    epoch: Epoch
    timeout: float


async def _others(request: Request, services: TheServices, scope: Scope = PROXY) -> list[FleetMember]:
    """The other proxies that a step covers."""
    if scope == PROXY:
        return []
    caller = credentials(request)
    return [RemoteMember(services.peers, ordinal, credentials=caller) for ordinal in services.peers.others]


Others = Annotated[list[FleetMember], Depends(_others)]


@router.get("/version", responses={200: {"model": Weights}})
async def show_version(others: Others, services: TheServices) -> Response:
    """Run, version, epoch and pause. In fleet scope the newest that a proxy knows, and under `proxies` each one's."""
    return _answer(await services.fleet_weights.show(others))


@router.put("/version", responses={200: {"model": Weights}})
async def set_version(asked: SetVersion, others: Others, services: TheServices) -> Response:
    """The engines have these weights now. Equal is fine; backwards is 409 with the current version."""
    return _answer(
        await services.fleet_weights.advance(
            others, version=asked.version, epoch=asked.epoch, flush_cache=asked.flush_cache
        )
    )


@router.post("/recover", responses={200: {"model": Weights}})
async def recover(asked: Recover, others: Others, services: TheServices) -> Response:
    """Begin a new run at a checkpoint, which may be older; what is newer is dropped or kept.

    Sessions that earlier runs left open are kept, closed or deleted. To drop what is newer than less than half of the
    fleet's version needs `confirm`, where anything would go; else it is 409 `recovery_too_far`.
    """
    recovery = Recovery(run=asked.run, version=asked.version, newer=asked.newer, open=asked.open)
    return _answer(await services.fleet_weights.recover(others, recovery, confirmed=asked.confirm))


@router.post("/pause", responses={200: {"model": Weights}})
async def pause(others: Others, services: TheServices, asked: Pause | None = None) -> Response:
    """Stop generation; returns when nothing generates, or (retract, in_place) when every engine has confirmed."""
    asked = asked or Pause()
    return _answer(
        await services.fleet_weights.pause(others, mode=asked.mode, timeout=asked.timeout, epoch=asked.epoch)
    )


@router.post("/continue", responses={200: {"model": Weights}})
async def go_on(others: Others, services: TheServices, asked: Continue | None = None) -> Response:
    """Engines go on, then proxies. An older epoch is 409 with the current one."""
    asked = asked or Continue()
    return _answer(await services.fleet_weights.resume(others, epoch=asked.epoch))


@router.post("/load-from-disk", responses={200: {"model": Weights}})
async def load_from_disk(asked: LoadFromDisk, others: Others, services: TheServices) -> Response:
    """Pause, let every engine load a checkpoint, set the version, continue: answers when all of it is done.

    Where it fails after the pause, it is 502 `load_failed`, and the fleet stays paused. Made again with the same epoch
    it is the same update.
    """
    return _answer(await services.fleet_weights.load(others, asked))


@router.get(STATE_PATH)
async def state(services: TheServices) -> dict[str, Any]:
    """What this proxy knows."""
    return services.weights.gate.state.as_json()


@router.post(JOIN_PATH)
async def join(told: dict[str, Any], services: TheServices) -> dict[str, Any]:
    """Take what a leading proxy tells; answers with what is known then, which may be newer."""
    try:
        heard = WeightState.from_json(told)
    except (LookupError, TypeError, ValueError):
        raise InvalidRequest(f"This is not a valid weight state: epochs and runs end at {LAST_EPOCH}.") from None
    return (await services.fleet_weights.heard(gate=heard.gate, versions=heard.versions)).as_json()


@router.post(SETTLED_PATH)
async def settled(asked: Settled, services: TheServices) -> None:
    """Answers when nothing of this proxy generates."""
    await services.weights.gate.settled(epoch=asked.epoch, timeout=asked.timeout)


@router.get(AT_STAKE_PATH)
async def at_stake(run: Run, version: Whole, services: TheServices) -> dict[str, Any]:
    """What a recovery would drop here."""
    return asdict(await services.weights.at_stake(run=run, version=version))


@router.get(RECOVERED_PATH)
async def recovered(run: Run, services: TheServices) -> dict[str, Any]:
    """What a recovery has done here."""
    counts = asdict(await services.weights.recovery_counts(run))
    # What is nothing is left out: a leader of an earlier release knows fewer of them.
    return {name: count for name, count in counts.items() if count}


def _answer(answer: dict[str, Any]) -> Response:
    return Response(encode(answer), media_type=JSON_MEDIA_TYPE)
