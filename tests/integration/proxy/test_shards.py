"""Shards of whole proxies: durable at every death, never held as a whole, and with one owner."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import safetensors.numpy
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.shard_calls import (
    MIB,
    NONE,
    SMALL,
    batch,
    delete,
    error,
    export,
    fetched,
    files,
    get,
    large,
    put,
    shards_of,
    talk,
    talked,
    wait_until_no_files,
)
from tests.unit.proxy.shards.shelf import form_of_all
from tests.unit.proxy.shards.shelf import safetensors as one_tensor
from tests.waiting import PATIENCE

from rolloutfleet.errors import (
    BODY_TOO_LARGE,
    FORBIDDEN_SCOPE,
    INVALID_KEY,
    INVALID_REQUEST,
    NO_ROOM,
    SESSION_CLOSED,
    SESSION_UNKNOWN,
    SHARD_CONFLICT,
    SHARD_UNKNOWN,
    STORE_LOST,
)
from rolloutfleet.tensors import Form, RemoteTensor, remote_tensors
from rolloutfleet_proxy.failpoints import AFTER_COMMIT, AFTER_SHARD_FILE, BEFORE_COMMIT, VARIABLE

LIMIT = 240 * MIB

Json = Any


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    settings = {"shard_limit": LIMIT, "body_limit": 200_000}
    with running_fleet(tmp_path_factory.mktemp("shards"), beside=shared, proxies=2, settings=settings) as fleet:
        yield fleet


def test_put_get_batch_delete(two: Fleet) -> None:
    proxy = two.proxy
    stored = put(proxy, "a", ttl=60)
    assert stored.status_code == 201
    assert stored.json() == {
        "type": "remote_tensor",
        "shard_id": "a",
        "owner": proxy.url,
        "shape": [2, 3],
        "dtype": "bfloat16",
        "bytes": 12,
        "session_id": None,
        "expires_in": 60,
        "ordinals": [0],
    }
    assert RemoteTensor.from_json(stored.json()) == RemoteTensor("a", proxy.url, (2, 3), "bfloat16")
    assert put(proxy, "a", ttl=60).status_code == 200
    assert error(put(proxy, "a", one_tensor(*form_of_all("bfloat16", 3, 2)))) == (409, SHARD_CONFLICT)
    assert put(proxy, "b").json()["expires_in"] == 86400

    got = get(proxy, "a")
    assert got.content == one_tensor(*form_of_all("bfloat16", 2, 3), name="a")
    assert int(got.headers["content-length"]) == len(got.content)
    many = batch(proxy, "b", "a", "b")
    assert many.status_code == 200 and many.content.count(form_of_all("bfloat16", 2, 3)[1]) == 2
    missing = batch(proxy, "a", "x", "y", "x")
    assert error(missing) == (404, SHARD_UNKNOWN) and missing.json()["missing"] == ["x", "y"]
    some = batch(proxy, "a", "x", partial=True).content
    header = json.loads(some[8 : 8 + int.from_bytes(some[:8], "little")])
    assert header.keys() == {"__metadata__", "a"} and json.loads(header["__metadata__"]["missing"]) == ["x"]
    assert batch(proxy, "x", partial=True).status_code == 200

    assert shards_of(proxy) == {"count": 2, "bytes": 24, "orphans": 0}
    metrics = httpx.get(f"{proxy.url}/metrics").text
    assert 'rolloutfleet_shards{kind="count"} 2.0' in metrics and 'rolloutfleet_shards{kind="bytes"} 24.0' in metrics
    assert delete(proxy, "a", "b", "x").json() == {"deleted": 2, "bytes": 24, "ordinals": [0], "failed": []}
    assert delete(proxy, "a", "b", "x").json() == {"deleted": 0, "bytes": 0, "ordinals": [0], "failed": []}
    assert error(get(proxy, "a")) == (404, SHARD_UNKNOWN)
    wait_until_no_files(proxy)
    assert shards_of(proxy) == NONE


@pytest.mark.parametrize(
    ("name", "query", "body", "expected"),
    [
        ("x", {"ttl": 0}, SMALL, (400, INVALID_REQUEST)),
        ("x", {"ttl": "soon"}, SMALL, (400, INVALID_REQUEST)),
        ("x", {"ttl": "nan"}, SMALL, (400, INVALID_REQUEST)),
        ("x", {"ttl": 1e12}, SMALL, (400, INVALID_REQUEST)),
        ("x", {"session_id": ""}, SMALL, (400, INVALID_REQUEST)),
        ("x", {"session_id": "nobody"}, SMALL, (404, SESSION_UNKNOWN)),
        (".x", {}, SMALL, (400, INVALID_REQUEST)),
        ("x%20y", {}, SMALL, (400, INVALID_REQUEST)),
        ("x" * 129, {}, SMALL, (400, INVALID_REQUEST)),
        ("x", {}, b"", (400, INVALID_REQUEST)),
        ("x", {}, SMALL[:-1], (400, INVALID_REQUEST)),
        ("x", {}, SMALL + b"\0", (400, INVALID_REQUEST)),
        ("x", {}, b"{}", (400, INVALID_REQUEST)),
    ],
    ids=range(13),
)
def test_a_bad_put_is_refused_and_leaves_nothing(
    two: Fleet, name: str, query: Json, body: bytes, expected: tuple[int, str]
) -> None:
    reply = put(two.proxy, name, body, **query)
    assert error(reply) == expected, reply.text
    assert shards_of(two.proxy) == NONE and files(two.proxy) == []


def test_names_of_a_proxys_own_form_and_what_is_too_large_are_refused(two: Fleet) -> None:
    proxy = two.proxy
    own = f"t0-{proxy.stats()['store_id']}-{'0' * 32}"
    assert error(put(proxy, own)) == (400, INVALID_REQUEST)
    assert error(put(proxy, f"t0-{'0' * 12}-{'0' * 32}")) == (410, STORE_LOST)
    zeros = bytes(MIB)
    form = Form("uint8", (LIMIT,))
    too_large = (piece for piece in (one_tensor(form, b""), *(zeros for _ in range(LIMIT // MIB))))
    assert error(put(proxy, "x", too_large)) == (413, BODY_TOO_LARGE)
    ids = [str(at) for at in range(10_001)]
    with proxy.admin() as admin:
        bad: list[Json] = [
            {"ids": ["a"], "partial": 1},
            {"ids": "a"},
            {},
            {"ids": ids},
            {"ids": ["a"], "x": 1},
        ]
        for body in bad:
            assert error(admin.post("/shards/batch", json=body)) == (400, INVALID_REQUEST), body
        # Only tensors go past the limit of what is held in memory.
        assert error(admin.post("/shards/batch", json={"ids": ["x" * 100] * 3000})) == (413, BODY_TOO_LARGE)
        assert error(admin.request("DELETE", "/shards", json={"ids": "a"})) == (400, INVALID_REQUEST)
    assert shards_of(proxy) == NONE and files(proxy) == []


def test_shards_need_the_admin_key(two: Fleet) -> None:
    session = two.proxy.start_session()
    for key, expected in ((None, (401, INVALID_KEY)), (session.api_key, (403, FORBIDDEN_SCOPE))):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=session.base_url.partition("/sessions")[0], headers=headers) as client:
            for method, path in (
                ("PUT", "/shards/x"),
                ("GET", "/shards/x"),
                ("POST", "/shards/batch"),
                ("DELETE", "/shards"),
            ):
                assert error(client.request(method, path, content=b"{}")) == expected
    assert session.post("close").status_code == 200


def test_a_session_s_shards_live_with_its_owner_and_go_with_it(two: Fleet) -> None:
    session = two.proxy.start_session()
    owner, other = (two.proxies[int(session.session_id[1]) ^ at] for at in (0, 1))
    of_session = {"session_id": session.session_id}
    stored = put(other, "its", **of_session)
    assert stored.status_code == 201 and stored.json()["owner"] == owner.url
    assert stored.json()["expires_in"] is None
    assert shards_of(other) == NONE and shards_of(owner)["count"] == 1
    assert error(get(other, "its")) == (404, SHARD_UNKNOWN)
    assert get(other, "its", **of_session).content == get(owner, "its").content
    assert session.post("close").status_code == 200
    assert shards_of(owner)["count"] == 0, "a session without turns has nothing to keep"
    assert error(put(other, "its", **of_session)) == (410, SESSION_CLOSED)


def test_a_proxy_s_own_names_are_found_from_any_proxy(two: Fleet) -> None:
    proxy, other = two.proxies
    its = f"t1-{other.stats()['store_id']}-{'0' * 32}"
    unheard = f"t0-{'0' * 12}-{'0' * 32}"
    assert error(get(proxy, its)) == (404, SHARD_UNKNOWN)
    missing = batch(proxy, its)
    assert missing.json()["missing"] == [its]
    assert delete(proxy, its).json()["ordinals"] == [1]
    assert error(batch(proxy, its, "x")) == (400, INVALID_REQUEST)
    assert error(get(proxy, unheard)) == (410, STORE_LOST)
    assert delete(proxy, unheard).json()["deleted"] == 0
    assert error(get(proxy, f"t7-{'0' * 12}-{'0' * 32}")) == (404, SHARD_UNKNOWN)


def test_large_shards_go_by_without_being_held(two: Fleet) -> None:
    """24 MiB in and out, alone, in a batch and through another proxy; what they take in memory: `tests/timing`."""
    session = two.proxy.start_session()
    owner, other = (two.proxies[int(session.session_id[1]) ^ at] for at in (0, 1))
    of_session = {"session_id": session.session_id}
    for proxy, name in ((owner, "first"), (other, "second")):
        assert put(proxy, name, large(24), **of_session).status_code == 201
        assert fetched(proxy, "GET", f"/shards/{name}", params=of_session) > 24 * MIB
    assert fetched(owner, "POST", "/shards/batch", json={"ids": ["first", "second"]}) > 48 * MIB
    for stats in (proxy.stats() for proxy in two.proxies):
        assert stats["in_flight_bytes"] == 0 and stats["most_in_flight_bytes"] < MIB, "its bodies were held"
    assert delete(owner, "first", "second").json()["deleted"] == 2
    assert session.post("close").status_code == 200
    wait_until_no_files(owner)
    assert [shards_of(proxy) for proxy in two.proxies] == [NONE, NONE]


def test_a_reader_that_leaves_holds_nothing_back(two: Fleet) -> None:
    proxy = two.proxy
    names = [f"left{number}" for number in range(8)]
    for name in names:
        assert put(proxy, name, large(8)).status_code == 201
    for at, name in enumerate(names):
        with proxy.admin() as admin, admin.stream("GET", f"/shards/{name}") as reply:
            parts = reply.iter_raw()
            for _ in range(at):
                next(parts)
    assert delete(proxy, *names).json()["deleted"] == 8
    wait_until_no_files(proxy)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("deaths"), beside=shared, start_proxies=False) as fleet:
        yield fleet


@pytest.mark.parametrize("place", [AFTER_SHARD_FILE, BEFORE_COMMIT, AFTER_COMMIT])
def test_a_death_between_file_and_row_loses_nothing_that_was_answered(mortal: Fleet, place: str) -> None:
    proxy = mortal.proxy
    proxy.environment = {VARIABLE: f"{place}:8"}
    proxy.start()
    answered, interrupted = put_until_it_dies(proxy, place)
    proxy.environment = {}
    proxy.start()
    for name in answered:
        assert get(proxy, name).content == one_tensor(*form_of_all("bfloat16", 2, 3), name=name)
    kept = {name for name in interrupted if get(proxy, name).status_code == 200}
    audit = proxy.audit()
    assert audit["balanced"] and audit["shards"]["count"] == len(answered) + len(kept)
    assert len(files(proxy)) == audit["shards"]["count"] + audit["shards"]["orphans"]
    if place == AFTER_SHARD_FILE:
        assert not kept and audit["shards"]["orphans"] == len(interrupted) == 1
    assert put(proxy, interrupted[0]).status_code == (200 if kept else 201)
    assert delete(proxy, *answered, *interrupted).json()["deleted"] == len(answered) + 1
    left = shards_of(proxy)
    assert left["count"] == 0 and len(files(proxy)) == left["orphans"] == audit["shards"]["orphans"]
    for orphan in files(proxy):
        orphan.unlink()
    proxy.stop()


def put_until_it_dies(proxy: ProxyProcess, place: str) -> tuple[list[str], list[str]]:
    """(the ids that were answered, the one that was not)."""
    names = [f"{place}-{number}" for number in range(20)]
    for at, name in enumerate(names):
        try:
            assert put(proxy, name).status_code == 201
        except httpx.TransportError:
            proxy.wait_until_killed(PATIENCE)
            return names[:at], [name]
    raise AssertionError("it did not die")


def test_expired_shards_go_by_themselves_also_those_of_a_life_before(mortal: Fleet) -> None:
    proxy = mortal.proxy
    proxy.start()
    assert put(proxy, "brief", ttl=2).status_code == 201
    proxy.kill()
    proxy.start()
    wait_until_no_files(proxy)
    assert shards_of(proxy) == NONE and error(get(proxy, "brief")) == (404, SHARD_UNKNOWN)
    proxy.stop()


def test_an_export_as_shards_is_fetched_from_any_proxy_and_cleared(two: Fleet) -> None:
    session = talked(two.proxy, times=2)
    owner, other = (two.proxies[int(session.session_id[1]) ^ at] for at in (0, 1))
    asked = {"session_ids": [session.session_id]}
    with owner.admin() as admin:
        refused = admin.post("/export", json={"as": "shards", **asked}, headers={"accept": "application/octet-stream"})
        assert error(refused) == (406, INVALID_REQUEST)
    answer = export(other, key="once", **asked)
    assert answer.status_code == 200 and answer.headers["lease-id"] == answer.json()["lease_id"]
    found = list(remote_tensors(answer.json()))
    assert len(found) == 10 and {reference.owner for reference in found} == {owner.url}
    assert shards_of(owner)["count"] == 10 and shards_of(other) == NONE
    assert export(other, key="once", **asked).json()["trajectories"] == answer.json()["trajectories"]

    ids = [reference.shard_id for reference in found]
    whole = {name: got.content for got, name in ((get(other, name), name) for name in ids)}
    many = batch(other, *ids)
    assert many.status_code == 200 and len(many.content) < sum(map(len, whole.values()))
    with other.admin() as admin:
        lease = answer.json()["lease_id"]
        assert admin.post(f"/leases/{lease}/release").status_code == 200
        full = admin.post("/export", json=asked).json()
        assert admin.post(f"/leases/{full['lease_id']}/ack").status_code == 200
    [trajectory] = full["trajectories"]
    for row, referred in zip(trajectory["rows"], answer.json()["trajectories"][0]["rows"], strict=True):
        for name, reference in referred["tensors"].items():
            [tensor] = safetensors.numpy.load(whole[reference["shard_id"]]).values()
            assert tensor.tolist() == row["tensors"][name]
    assert delete(other, *ids).json()["deleted"] == 10
    assert shards_of(owner) == NONE and owner.audit()["keys"] == 0


def test_clearing_over_the_whole_fleet_reaches_every_proxy(two: Fleet) -> None:
    own = {}
    placed: list[AgentSession] = []
    while {session.session_id[:2] for session in placed} != {"s0", "s1"}:
        assert len(placed) < 100
        placed.append(two.proxy.start_session())
    for session in placed:
        talk(session)
    for proxy in two.proxies:
        answer = export(proxy).json()
        own[proxy.ordinal] = [reference.shard_id for reference in remote_tensors(answer)]
        with proxy.admin() as admin:
            admin.post(f"/leases/{answer['lease_id']}/ack").raise_for_status()
    assert all(own.values())
    assert put(two.proxies[1], "mine").status_code == 201
    ids = [*own[0], *own[1], "mine", "nobodys"]
    assert error(batch(two.proxy, *ids)) == (400, INVALID_REQUEST)
    of_none = f"t7-{'0' * 12}-{'0' * 32}"
    with two.proxy.admin() as admin:
        asked = {"ids": [*ids, of_none]}
        cleared = admin.request("DELETE", "/shards", params={"scope": "fleet"}, json=asked).json()
    [failed] = cleared["failed"]
    assert (failed["ordinal"], failed["error"]["code"]) == (7, SHARD_UNKNOWN)
    assert cleared["deleted"] == len(ids) - 1 and cleared["ordinals"] == [0, 1] and cleared["bytes"] > 0
    assert [shards_of(proxy) for proxy in two.proxies] == [NONE, NONE]


@pytest.fixture
def limited(mortal: Fleet, tmp_path: Path) -> Iterator[ProxyProcess]:
    """With a store of its own, which may have 6 MiB."""
    proxy = mortal.proxy
    before = proxy.settings
    proxy.settings = before | {"state_dir": str(tmp_path / "state"), "sessions": {"limits": {"bytes": "6Mi"}}}
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
        proxy.settings = before


def test_shards_count_into_the_limit_of_bytes(limited: ProxyProcess) -> None:
    proxy = limited
    body = one_tensor(Form("uint8", (4 * MIB,)), bytes(4 * MIB))
    assert put(proxy, "one", body).status_code == 201
    refused = put(proxy, "two", body)
    assert error(refused) == (429, NO_ROOM) and "retry-after" in refused.headers
    assert put(proxy, "small").status_code == 201
    other = one_tensor(Form("uint8", (15 * MIB // 8,)), bytes(15 * MIB // 8))
    unsized = put(proxy, "unsized", (part for part in (other,)))
    assert unsized.status_code == 201, "how long it is shows when it is there"
    with proxy.admin() as admin:
        assert error(admin.post("/sessions", json={})) == (429, NO_ROOM)
    assert error(put(proxy, "small2")) == (429, NO_ROOM)
    delete(proxy, "one")
    proxy.start_session()
