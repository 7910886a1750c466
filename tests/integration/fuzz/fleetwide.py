"""What befalls a whole proxy or the fleet: asked while no lane asks anything, and never right from a lane."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.integration.fuzz.asking import (
    LONG,
    NATIVE_WRONG,
    SCOPES,
    Ask,
    Effect,
    Json,
    Lane,
    by_admin,
    end_of,
    export_of,
    nothing,
)
from tests.integration.fuzz.model import Untold
from tests.integration.fuzz.wire import Answer

FLEET = {"scope": "fleet"}
MODES = ("abort", "wait", "retract", "in_place")
Ask_ = Callable[[Ask], Awaitable[Answer | None]]
"""Asks, and judges what comes; None where no 2xx came."""


@dataclass(slots=True)
class Weights:
    """What the fleet was last told of its weights."""

    run: int = 0
    version: int = 0
    sampled: int = 1
    """The highest version that engines have had, and tokens may have."""


def _said(lane: Lane, route: str, body: Json, *, effect: Effect = nothing, **options: Any) -> Ask:
    text = None if body is None else json.dumps(body).encode()
    return by_admin(lane, route, body=text, effect=effect, **({"query": FLEET} | options))


async def export_what_is_ready(lane: Lane, ask: Ask_, weights: Weights) -> None:
    """The oldest complete groups of one proxy, whoever's; then every lease is ended."""
    proxy = lane.any_proxy()
    body: dict[str, Any] = {"max_trajectories": lane.random.randint(1, 40), "lease_seconds": LONG}
    await ask(export_of(lane, body, proxy=proxy, owner=proxy))
    for lease in lane.leases():
        await ask(end_of(lane, lease, what=lane.random.choice(["ack", "ack", "release", "renew"])))
    for lease in lane.leases():
        held = [name for name in lease.members if name not in lease.released]
        named = {"trajectory_ids": held}
        await ask(
            _said(lane, "POST /leases/{id}/ack", named, names=(lease.name,), query={}, effect=_acknowledges(lane))
        )


def _acknowledges(lane: Lane) -> Effect:
    def effect(answer: Answer, sent: Json) -> None:
        lane.model.acknowledged(lane.model.leases[answer.json["lease_id"]], answer.json["acknowledged"])

    return effect


async def update_weights(lane: Lane, ask: Ask_, weights: Weights) -> None:
    mode = lane.random.choice(MODES)
    paused = await ask(_said(lane, "POST /pause", {"mode": mode, "timeout": 30}))
    if paused is None:
        return
    weights.version += lane.random.randint(0, 3)
    epoch = paused.json["epoch"]
    await ask(_said(lane, "POST /peers/weights/settled", {"epoch": epoch, "timeout": 30}, query={}))
    await ask(_said(lane, "PUT /version", {"version": weights.version, "epoch": epoch}))
    await ask(_said(lane, "POST /continue", {"epoch": epoch}))
    state = await ask(by_admin(lane, "GET /peers/weights"))
    if state is not None:
        await ask(_said(lane, "POST /peers/weights/join", state.json, query={}))
    loaded = max(weights.version, weights.sampled) + lane.random.randint(0, 3)
    if await ask(_said(lane, "POST /load-from-disk", {"path": "weights", "version": loaded, "mode": mode})) is not None:
        weights.version = weights.sampled = loaded


async def recover(lane: Lane, ask: Ask_, weights: Weights) -> None:
    """To 0, behind all tokens there are, or to where nothing is lost."""
    drops = lane.random.random() < 0.3
    to = 0 if drops else max(weights.sampled, weights.version - 1)
    ends = lane.random.choice(["close", "delete"] if drops else ["keep", "keep", "close", "delete"])
    newer = "drop" if drops else lane.random.choice(["drop", "keep"])
    body = {"run": weights.run + 1, "version": to, "newer": newer, "open": ends, "confirm": drops}

    def effect(answer: Answer, sent: Json) -> None:
        lane.model.recovered(drops=drops, ends=ends)
        weights.run, weights.version = weights.run + 1, to

    await ask(_said(lane, "POST /recover", body, effect=effect))


async def retire(lane: Lane, ask: Ask_, weights: Weights) -> None:
    await retire_one(lane, ask, proxy=lane.any_proxy(), brings_in=lane.random.randint(0, 4))


async def retire_one(lane: Lane, ask: Ask_, *, proxy: int, brings_in: int) -> None:
    """Drain a proxy, have it dump what it has, and undo it; then the dumps of so many groups come in again."""
    drain = f"drain {lane.fresh()}"
    here: dict[str, Any] = {"proxy": proxy, "query": {}}
    await ask(_said(lane, "POST /drain", {"id": drain, "mode": "cordon", "reason": "a fuzz"}, **here))
    await ask(_said(lane, "POST /dumps", None, **here, effect=_retires(lane, proxy)))
    await ask(_said(lane, "DELETE /drain", None, proxy=proxy, query={"id": drain}))
    groups = sorted({dump.group for dump in lane.model.dumps.values() if dump.proxy == proxy})
    for group in lane.random.sample(groups, min(len(groups), brings_in)):
        names = [dump.name for dump in lane.model.dumps.values() if dump.group == group]

        def effect(answer: Answer, sent: Json) -> None:
            lane.model.brought_in(answer.json)

        await ask(_said(lane, "POST /dumps/import", {"names": names}, **here, effect=effect))


def _retires(lane: Lane, proxy: int) -> Effect:
    def effect(answer: Answer, sent: Json) -> None:
        count, told = lane.model.retired(proxy), answer.json
        if told["failing"] or told["reclaimed"] != count:
            raise Untold(f"{told['reclaimed']} sessions were dumped and {told['failing']} failed; there were {count}")

    return effect


EPISODES: tuple[tuple[Callable[[Lane, Ask_, Weights], Awaitable[None]], float], ...] = (
    (export_what_is_ready, 4),
    (update_weights, 3),
    (recover, 1),
    (retire, 1),
)
"""What is done between rounds of the lanes, and how often."""


def never_right(lane: Lane) -> Ask:
    """A request that would befall others: only ever sent with something surely wrong."""
    body: Json
    route, body = lane.random.choice(
        [
            ("POST /export", {"max_trajectories": 1}),
            ("PUT /version", {"version": 1}),
            ("POST /pause", {"mode": "abort"}),
            ("POST /continue", {}),
            ("POST /load-from-disk", {"path": "nowhere", "version": 1}),
            ("POST /recover", {"version": 0, "run": 1}),
            ("POST /drain", {"id": "nobody", "mode": "cordon", "ttl": 0.01}),
            ("DELETE /drain", None),
            ("POST /dumps", None),
            ("POST /dumps/import", {"names": ["nobody"]}),
            ("POST /peers/weights/join", {"gate": "none"}),
            ("POST /peers/weights/settled", {"epoch": 0, "timeout": 0.01}),
        ]
    )
    scoped = route.endswith(("/version", "/pause", "/continue", "/load-from-disk", "/recover"))
    wrong = NATIVE_WRONG.get(route, _WRONG.get(route, {}))
    asked = _said(lane, route, body, query={}, queries=SCOPES if scoped else {}, wrong=wrong)
    return replace(asked, fleetwide=True)


_WRONG: dict[str, dict[str, list[Any]]] = {
    "POST /drain": {
        "id": ["", 1, None, "x" * 129, []],
        "mode": ["gently", 1, None],
        "then": ["sleep", 1],
        "ttl": [0, -1, "1", True, 1e300, None],
        "reason": [1, "x" * 1025],
    },
    "POST /dumps/import": {
        "names": [
            [],
            "x",
            [1],
            [""],
            ["x" * 513],
            {},
            ["a", "a"],
            ["\ud800"],
            ["../etc/passwd"],
            ["/etc/passwd"],
            ["."],
        ],
        "incomplete": [1, "true", None],
    },
    "POST /peers/weights/join": {"gate": [None, 1, {}], "versions": [1, {}, []]},
    "POST /peers/weights/settled": {"epoch": [-1, "1", 2**31, None], "timeout": ["x", None, []]},
}
