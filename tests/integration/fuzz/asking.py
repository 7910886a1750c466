"""Requests that are right: for each call of docs/api.md how it is asked, and what a 2xx tells of the fleet.

A lane is one caller with sessions, leases and shards of its own, so that what its answers say does not depend on what
other lanes do meanwhile. What befalls a whole proxy or the fleet is in `fleetwide`.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import save
from tests.integration.fuzz.model import Lease, Model, Session, Untold
from tests.integration.fuzz.wire import Answer
from tests.integration.proxy.test_bad_input import NATIVE

from rolloutfleet.wire import EXPORT_METADATA_KEY, JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE

Json = Any
Effect = Callable[[Answer, Json], None]
"""Told of a 2xx and of the body that was sent. Raises Untold where the answer can't be."""

SESSIONS_A_LANE = 6
LEASES_A_LANE = 2
SHARDS_A_LANE = 12
LONG = 86_400.0
"""Seconds: nothing that is leased or kept for so long ends by itself while a fuzz runs."""
MODELS = ("simulated", "gpt-5", "org/some-model", "org%2Fsome-model")


def nothing(answer: Answer, sent: Json) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request that is right at this moment."""

    route: str
    """As docs/api.md has it: `POST /sessions/{id}/touch`."""
    names: tuple[str, ...] = ()
    """What stands for each `{id}`."""
    proxy: int
    key: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Wrong values of its query parameters."""
    body: bytes | None = None
    """None: it takes none."""
    wrong: Mapping[str, list[Any]] = field(default_factory=dict)
    """Wrong values of its body's fields."""
    headers: Mapping[str, str] = field(default_factory=dict)
    retried: bool = False
    """An Idempotency-Key makes a second try of it harmless."""
    sure: bool = True
    """Whether it must be answered with a 2xx."""
    fleetwide: bool = False
    """A request like it that happens to be right would befall other lanes, too."""
    effect: Effect = nothing

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        names = iter(self.names)
        parts = self.route.partition(" ")[2].split("/")
        return "/".join(next(names) if part == "{id}" else part for part in parts)

    @property
    def json(self) -> Json:
        """Its body, where that is JSON."""
        return None if self.body is None or self.takes_tensors else json.loads(self.body)

    @property
    def takes_tensors(self) -> bool:
        return self.goes_to_disk or self.route == "POST /sessions/{id}/annotations"

    @property
    def goes_to_disk(self) -> bool:
        """Its body is written as it comes, so that a compressed one is refused."""
        return self.route == "PUT /shards/{id}"

    @property
    def by_key_alone(self) -> bool:
        """Any session's key opens its own with it."""
        return self.route.partition(" ")[2].startswith("/v1/")

    @property
    def shows_keys(self) -> bool:
        return self.route == "POST /sessions"


SCOPES = {"scope": ("world", "", "proxy,fleet")}
_LIMITS = {"limit": ("0", "1001", "x", "-1", "1e3", "", "9" * 400, "²"), "cursor": ("x", "-1", "9" * 30, "0:1,1:2:3")}
_CHOSEN = (
    *(
        ("state", "open"),
        ("order", "newest"),
        ("limit", "7"),
        ("scope", "fleet"),
        ("task_id", "t"),
        ("rewarded", "true"),
    ),
    *(("min_reward", "-1e30"), ("max_reward", "1"), ("min_branches", "1"), ("min_turns", "1"), ("max_turns", "9")),
    *(("min_tokens", "0"), ("max_tokens", "9007199254740992"), ("min_version", "0"), ("max_version", "3")),
)
_COUNTS = ("min_branches", "min_turns", "max_turns", "min_tokens", "max_tokens", "min_version", "max_version")
_BADLY_CHOSEN = {
    "state": ("some", "", "OPEN"),
    "order": ("up", ""),
    "task_id": ("x" * 513,),
    "group_id": ("", "x" * 129),
    "rewarded": ("some", "", "2"),
    **dict.fromkeys(("min_reward", "max_reward"), ("nan", "inf", "1e31", "x", "")),
    **dict.fromkeys(_COUNTS, ("-1", "1.5", "x", "", "9" * 30)),
}
NATIVE_WRONG: dict[str, Mapping[str, list[Any]]] = {
    f"{method} {path.format(session='{id}', lease='{id}')}": fields for (method, path), (_, fields) in NATIVE.items()
}
"""Wrong values of each field of the native API, by route."""


@dataclass(slots=True)
class Lane:
    """One caller, and what it has."""

    number: int
    model: Model
    random: Random
    admin: str
    proxies: int
    nonce: int = 0

    def fresh(self) -> str:
        """A text that nobody has sent before."""
        self.nonce += 1
        return f"{self.number}-{self.nonce}-{self.random.randrange(1 << 30)}"

    def any_proxy(self) -> int:
        return self.random.randrange(self.proxies)

    def sessions(self, *, state: str = "open") -> list[Session]:
        return [each for each in self.model.sessions.values() if each.lane == self.number and each.state == state]

    def leases(self) -> list[Lease]:
        return [each for each in self.model.leases.values() if each.lane == self.number]

    def shards(self) -> list[tuple[int, str]]:
        own = f"z{self.number}-"
        return [(proxy, name) for proxy, kept in enumerate(self.model.shards) for name in kept if name.startswith(own)]

    def key_of(self, session: Session, *, chance: float) -> str:
        """The session's own key, or the admin's."""
        return session.key if not session.odd and self.random.random() < chance else self.admin


# Reading


def by_admin(lane: Lane, route: str, **options: Any) -> Ask:
    given: dict[str, Any] = {"proxy": lane.any_proxy(), "key": lane.admin}
    return Ask(route=route, **(given | options))


def health(lane: Lane) -> Ask:
    route = lane.random.choice(["GET /health", "GET /ready", "GET /metrics"])
    return Ask(route=route, proxy=lane.any_proxy())


def figures(lane: Lane) -> Ask:
    route = lane.random.choice(["GET /proxies", "GET /stats", "GET /audit", "GET /version", "GET /openapi.json"])
    scoped = route not in ("GET /proxies", "GET /openapi.json")
    query = {"scope": "fleet"} if scoped and lane.random.random() < 0.3 else {}
    return by_admin(lane, route, query=query, queries=SCOPES if scoped else {})


def peers(lane: Lane) -> Ask:
    which = lane.random.choice(["", "/at-stake", "/recovered"])
    query = {"": {}, "/at-stake": {"run": "1", "version": "1"}, "/recovered": {"run": "1"}}[which]
    queries = dict.fromkeys(query, ("-1", "x", "", "9" * 30))
    return by_admin(lane, f"GET /peers/weights{which}", query=query, queries=queries)


def listing(lane: Lane) -> Ask:
    query: dict[str, str] = {}
    for name, value in _CHOSEN:
        if lane.random.random() < 0.2:
            query[name] = value
    queries = SCOPES | _LIMITS | _BADLY_CHOSEN
    return by_admin(lane, "GET /sessions", query=query, queries=queries)


def commits(lane: Lane) -> Ask:
    queries = {"cursor": ("", "x" * 129), "follow": ("some", "")}
    return by_admin(lane, "GET /events", query={"follow": "false"}, queries=queries)


def show(lane: Lane) -> Ask | None:
    there = [*lane.sessions(), *lane.sessions(state="closed")]
    if not there:
        return None
    session = lane.random.choice(there)
    key = lane.key_of(session, chance=0.5)
    where: Any = {"proxy": lane.any_proxy(), "key": key, "names": (session.name,)}
    match lane.random.randrange(4):
        case 0:
            where["key"] = lane.admin
            query = {"branch": lane.random.choice(sorted(session.ids))} if session.ids else {}
            queries = {"branch": ("", "x" * 129), "cursor": ("x", "a:b:c", ":0:0", "a:1", "x" * 200)}
            queries["outline"] = ("some",)
            if lane.random.random() < 0.3:
                query["outline"] = "true"
            return Ask(route="GET /sessions/{id}/conversation", **where, query=query, queries=queries)
        case 1:
            return Ask(route="GET /sessions/{id}", **where, effect=_as_many_turns(session, "turns"))
        case 2:
            query = {"limit": "1000"}
            return Ask(
                route="GET /sessions/{id}/turns", **where, query=query, queries=_LIMITS, effect=_same_turns(session)
            )
        case _:
            if lane.random.random() < 0.5:
                return Ask(route="GET /sessions/{id}/v1/models", **where)
            where["names"] = (session.name, lane.random.choice(MODELS))
            return Ask(route="GET /sessions/{id}/v1/models/{id}", **where)


def _as_many_turns(session: Session, name: str) -> Effect:
    def check(answer: Answer, sent: Json) -> None:
        if answer.json[name] != len(session.ids):
            raise Untold(f"{answer.json[name]} turns in a session in which {len(session.ids)} were answered")

    return check


def _same_turns(session: Session) -> Effect:
    def check(answer: Answer, sent: Json) -> None:
        told = {turn["turn_id"] for turn in answer.json["turns"]}
        if told != session.ids:
            raise Untold(f"turns {sorted(told ^ session.ids)[:4]} are there or were answered, not both")

    return check


def models(lane: Lane) -> Ask | None:
    there = [each for each in lane.sessions() if not each.odd]
    if not there:
        return None
    key = lane.random.choice(there).key
    if lane.random.random() < 0.5:
        return Ask(route="GET /v1/models", proxy=lane.any_proxy(), key=key)
    return Ask(route="GET /v1/models/{id}", names=(lane.random.choice(MODELS),), proxy=lane.any_proxy(), key=key)


# Sessions


def start(lane: Lane) -> Ask | None:
    if len(lane.sessions()) >= SESSIONS_A_LANE:
        return None
    random = lane.random
    body: dict[str, Any] = {"task_id": f"task {lane.fresh()}"}
    if random.random() < 0.3:
        body["group_size"] = random.randint(1, 3)
    if random.random() < 0.3:
        body["metadata"] = {"split": "train", "é": [1, None, {"x": 1.5}]}
    if random.random() < 0.3:
        body["limits"] = {"turns": 1000, "tokens": 2**40}
    if random.random() < 0.3:
        body["agent_may"] = random.sample(["reward", "close", "delete"], random.randint(1, 3))
    if random.random() < 0.2:
        body["stale_after"] = LONG

    def effect(answer: Answer, sent: Json) -> None:
        lane.model.started(answer.json, lane=lane.number, odd=sent != body, may=sent.get("agent_may") or ())

    headers = keyed(lane)
    return by_admin(
        lane,
        "POST /sessions",
        body=written(body),
        wrong=NATIVE_WRONG["POST /sessions"],
        headers=headers,
        retried=bool(headers),
        effect=effect,
    )


def keyed(lane: Lane, chance: float = 0.4) -> dict[str, str]:
    return {"Idempotency-Key": f"key {lane.fresh()}"} if lane.random.random() < chance else {}


def written(body: Json) -> bytes:
    return json.dumps(body).encode()


def touch(lane: Lane) -> Ask | None:
    there = lane.sessions()
    if not there:
        return None
    session = lane.random.choice(there)
    key = lane.key_of(session, chance=0.5)
    return Ask(route="POST /sessions/{id}/touch", names=(session.name,), proxy=lane.any_proxy(), key=key)


def annotate(lane: Lane) -> Ask | None:
    there = [each for each in (*lane.sessions(), *lane.sessions(state="closed")) if each.ids]
    if not there:
        return None
    session = lane.random.choice(there)
    notes = json.dumps({lane.random.choice(sorted(session.ids)): lane.fresh()})
    return by_admin(
        lane,
        "POST /sessions/{id}/annotations",
        names=(session.name,),
        body=save({}, metadata={"notes": notes}),
    )


def reward(lane: Lane) -> Ask | None:
    there = [each for each in lane.sessions() if each.open_turns and not each.odd]
    if not there:
        return None
    session = lane.random.choice(there)
    body: dict[str, Any] = {"reward": lane.random.choice([1, -1.5, 0.0, 1e30])}
    if lane.random.random() < 0.3:
        body["close"] = lane.random.random() < 0.5
    if lane.random.random() < 0.2:
        body["turn_id"] = session.newest

    def effect(answer: Answer, sent: Json) -> None:
        closes = sent.get("close")
        lane.model.rewarded(session, closes=sent.get("turn_id") is None if closes is None else closes)

    headers = keyed(lane)
    return Ask(
        route="POST /sessions/{id}/reward",
        names=(session.name,),
        proxy=lane.any_proxy(),
        key=lane.key_of(session, chance=0.5 if "reward" in session.may else 0),
        body=written(body),
        wrong=NATIVE_WRONG["POST /sessions/{id}/reward"],
        headers=headers,
        retried=bool(headers),
        effect=effect,
    )


def close(lane: Lane) -> Ask | None:
    there = [each for each in lane.sessions() if each.ids or each.odd]
    if not there or len(lane.sessions()) < SESSIONS_A_LANE // 2:
        return None
    session = lane.random.choice(there)
    return Ask(
        route="POST /sessions/{id}/close",
        names=(session.name,),
        proxy=lane.any_proxy(),
        key=lane.key_of(session, chance=0.5 if "close" in session.may else 0),
        effect=lambda answer, sent: lane.model.closed(session),
    )


def delete(lane: Lane) -> Ask | None:
    there = [*lane.sessions(), *lane.sessions(state="closed")]
    if not there or len(lane.sessions()) < SESSIONS_A_LANE // 2:
        return None
    session = lane.random.choice(there)
    return Ask(
        route="DELETE /sessions/{id}",
        names=(session.name,),
        proxy=lane.any_proxy(),
        key=lane.key_of(session, chance=0.5 if "delete" in session.may else 0),
        effect=lambda answer, sent: lane.model.deleted(session),
    )


# Exports


def export(lane: Lane) -> Ask | None:
    there = [*lane.sessions(), *lane.sessions(state="closed")]
    if not there or len(lane.leases()) >= LEASES_A_LANE:
        return None
    random, session = lane.random, lane.random.choice(there)
    body: dict[str, Any] = {"lease_seconds": LONG}
    if random.random() < 0.3:
        body["group_id"] = session.group
    else:
        mine = [each.name for each in there if each.proxy == session.proxy]
        body["session_ids"] = random.sample(mine, random.randint(1, len(mine)))
    return export_of(lane, body, proxy=lane.any_proxy(), owner=session.proxy)


def export_of(lane: Lane, body: dict[str, Any], *, proxy: int, owner: int) -> Ask:
    """An export with some style and form more."""
    random = lane.random
    if random.random() < 0.3:
        body |= {"style": random.choice(["concat", "individual"]), "discount": random.choice([0, 0.5, 1])}
    if random.random() < 0.2:
        body["as"] = "shards"
    media = random.choice([JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE]) if "as" not in body else JSON_MEDIA_TYPE
    headers = keyed(lane) | {"Accept": media}

    def effect(answer: Answer, sent: Json) -> None:
        told = _exported(answer)
        lane.model.exported(told, proxy=owner, lane=lane.number)
        for trajectory in told["trajectories"]:
            for row in trajectory["rows"]:
                for reference in (row.get("tensors") or {}).values():
                    if isinstance(reference, dict):
                        lane.model.kept(owner, reference["shard_id"], _bytes_of(reference))

    return by_admin(
        lane,
        "POST /export",
        proxy=proxy,
        body=written(body),
        wrong=NATIVE_WRONG["POST /export"],
        headers=headers,
        retried="Idempotency-Key" in headers,
        effect=effect,
    )


def _exported(answer: Answer) -> Json:
    """An export's object, in whichever form it came. Raises Untold where header and body name different leases."""
    told = answer.json
    if answer.headers["content-type"] == TENSORS_MEDIA_TYPE:
        (length,) = struct.unpack("<Q", answer.body[:8])
        told = json.loads(json.loads(answer.body[8 : 8 + length])["__metadata__"][EXPORT_METADATA_KEY])
    if answer.headers.get("lease-id") != told["lease_id"]:
        raise Untold("Lease-Id is not the lease of the body")
    return told


def _bytes_of(reference: Json) -> int:
    elements: int = math.prod(reference["shape"])
    return elements * int(np.dtype(reference["dtype"]).itemsize)


def end_of_lease(lane: Lane) -> Ask | None:
    """Acknowledge, release or renew, whole or in part."""
    leases = lane.leases()
    return None if not leases else end_of(lane, lane.random.choice(leases), what=lane.random.choice(_ENDS))


_ENDS = ("ack", "ack", "release", "renew")


def end_of(lane: Lane, lease: Lease, *, what: str) -> Ask:
    body: dict[str, Any] = {}
    if what == "renew":
        body["lease_seconds"] = LONG
    elif lease.released or lane.random.random() < 0.3:
        # What was given back may be another's by now: naming it would refuse the whole call.
        held = [name for name in lease.members if name not in lease.released]
        body["trajectory_ids"] = lane.random.sample(held, lane.random.randint(0, len(held)))

    def effect(answer: Answer, sent: Json) -> None:
        if what == "ack":
            lane.model.acknowledged(lease, answer.json["acknowledged"])
        elif what == "release":
            lane.model.released(lease, answer.json["released"])

    return by_admin(
        lane,
        f"POST /leases/{{id}}/{what}",
        names=(lease.name,),
        body=written(body),
        wrong=NATIVE_WRONG[f"POST /leases/{{id}}/{what}"],
        effect=effect,
    )


# Shards


def put(lane: Lane) -> Ask | None:
    if len(lane.shards()) >= SHARDS_A_LANE:
        return None
    random, name = lane.random, f"z{lane.number}-{lane.fresh()}"
    proxy, session = lane.any_proxy(), None
    query = {"ttl": str(LONG)} if random.random() < 0.5 else {}
    there = [each for each in lane.sessions() if not each.odd]
    if there and random.random() < 0.3:
        session = random.choice(there)
        query["session_id"] = session.name
    again = lane.shards()
    if again and not session and random.random() < 0.2:
        proxy, name = random.choice(again)
    shape = tuple(random.choices([0, 1, 3, 7], k=random.randint(0, 3)))
    body = save({"x": np.full(shape, len(name), random.choice([np.float16, np.int64, np.uint8, np.bool_]))})

    def effect(answer: Answer, sent: Json) -> None:
        owner = proxy if session is None else session.proxy
        lane.model.kept(owner, name, answer.json["bytes"], session)

    return by_admin(
        lane,
        "PUT /shards/{id}",
        names=(name,),
        proxy=proxy,
        query=query,
        queries={"ttl": ("0", "-1", "x", "nan", "inf", ""), "session_id": ("", "x" * 129, "nobody")},
        body=body,
        sure=(proxy, name) not in again,
        effect=effect,
    )


def get(lane: Lane) -> Ask | None:
    there = lane.shards()
    if not there:
        return None
    proxy, name = lane.random.choice(there)
    return by_admin(lane, "GET /shards/{id}", names=(name,), proxy=proxy)


def batch(lane: Lane) -> Ask:
    proxy = lane.any_proxy()
    own = [name for where, name in lane.shards() if where == proxy]
    body: dict[str, Any] = {"ids": lane.random.sample(own, lane.random.randint(0, len(own)))}
    if lane.random.random() < 0.3:
        body = {"ids": [*body["ids"], "of-nobody"], "partial": True}
    route = "POST /shards/batch"
    return by_admin(lane, route, proxy=proxy, body=written(body), wrong=NATIVE_WRONG[route])


def clear(lane: Lane) -> Ask:
    proxy = lane.any_proxy()
    everywhere = lane.random.random() < 0.3
    proxies = range(lane.proxies) if everywhere else (proxy,)
    own = [name for where, name in lane.shards() if where in proxies]
    body = {"ids": [*lane.random.sample(own, min(len(own), lane.random.randint(0, 3))), "of-nobody"]}

    def effect(answer: Answer, sent: Json) -> None:
        lane.model.cleared(proxies, sent["ids"], answer.json)

    return by_admin(
        lane,
        "DELETE /shards",
        proxy=proxy,
        query={"scope": "fleet"} if everywhere else {},
        queries=SCOPES,
        body=written(body),
        wrong=NATIVE_WRONG["DELETE /shards"],
        effect=effect,
    )


# Dumps


def dumps(lane: Lane) -> Ask:
    names = [*lane.model.dumps, *lane.model.imported[-20:]]
    if names and lane.random.random() < 0.6:
        return by_admin(lane, "GET /dumps/{id}", names=(lane.random.choice(names),))
    query = {name: value for name, value in (("state", "ready"), ("limit", "5")) if lane.random.random() < 0.3}
    query |= {"scope": "fleet"} if lane.random.random() < 0.3 else {}
    return by_admin(
        lane, "GET /dumps", query=query, queries=SCOPES | {"limit": _LIMITS["limit"], "state": ("some", "")}
    )
