"""`?scope=fleet` covers all proxies, or says which did not answer."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.capture.fleets import Fleet, running_fleet
from tests.client.processes import suspended


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("two"), proxies=2) as running:
        yield running


def test_sessions_stats_and_sums_of_the_whole_fleet_come_from_any_proxy(two: Fleet) -> None:
    with two.proxy.admin() as admin, two.proxies[1].admin() as other:
        placed = {"X-RolloutFleet-Placed": "0"}
        for client, count in ((admin, 5), (other, 8)):
            for _ in range(count):
                assert client.post("/sessions", json={}, headers=placed).status_code == 201
        sums = [client.get("/audit", params={"scope": "fleet"}).json() for client in (admin, other)]
        assert sums[0] == sums[1]
        assert sums[0]["sessions"]["created"] == 13 and sums[0]["balanced"] and sums[0]["ordinals"] == [0, 1]
        assert other.get("/audit").json()["sessions"]["created"] == 8
        stats = admin.get("/stats", params={"scope": "fleet"}).json()
        assert [one["ordinal"] for one in stats["proxies"]] == stats["ordinals"] == [0, 1]

        pages = []
        more: dict[str, Any] = {}
        while more is not None:
            page = admin.get("/sessions", params={"scope": "fleet", "limit": 3, **more}).json()
            pages.append(page["sessions"])
            more = {"cursor": page["cursor"]} if page["cursor"] else None  # type: ignore[assignment]
        names = [session["session_id"] for page in pages for session in page]
        assert len(names) == len(set(names)) == 13
        assert {session["ordinal"] for page in pages for session in page} == {0, 1}

        for wrong in ({"cursor": "0:1"}, {"cursor": "5", "scope": "fleet"}):
            refused = admin.get("/sessions", params=wrong)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "cursor"


def test_a_start_repeated_on_a_full_proxy_is_answered_as_before(two: Fleet) -> None:
    proxy = two.proxy
    proxy.stop()
    settings = proxy.settings
    proxy.settings = {**settings, "sessions": {"limits": {"sessions": 6}}}
    proxy.start()
    key = {"Idempotency-Key": "start-when-full", "X-RolloutFleet-Placed": "1"}
    with proxy.admin() as admin:
        first = admin.post("/sessions", json={}, headers=key)
        assert first.status_code == 201
        full = admin.post("/sessions", json={}, headers={"X-RolloutFleet-Placed": "1"})
        assert full.status_code == 429 and full.headers["retry-after"]
        assert full.json()["error"]["code"] == "no_room"
        again = admin.post("/sessions", json={}, headers=key)
        assert again.status_code == 201 and again.json()["session_id"] == first.json()["session_id"]


def test_who_looks_on_waits_no_longer_than_a_second_for_a_proxy_that_was_just_found_silent(two: Fleet) -> None:
    with suspended(two.proxies[1].stats()["pid"]), two.proxy.admin() as admin:
        until = time.monotonic() + 30
        while two.proxy.sees() != {0}:
            assert time.monotonic() < until, "the silent proxy is not seen to be silent"
        (silent,) = admin.get("/stats", params={"scope": "fleet"}).json()["failed"]
    assert "within 1 s" in silent["error"]["message"]


def test_a_proxy_that_does_not_answer_is_named(two: Fleet) -> None:
    two.proxies[1].kill()
    with two.proxy.admin() as admin:
        for path in ("/audit", "/stats", "/sessions"):
            answer = admin.get(path, params={"scope": "fleet"}).json()
            assert answer["ordinals"] == [0]
            (lost,) = answer["failed"]
            assert lost["ordinal"] == 1
            # The second where a connection that was kept is not seen to be closed yet.
            assert lost["error"]["code"] in ("owner_unreachable", "owner_unavailable")
