"""`?scope=fleet` covers all proxies, or says which did not answer."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.commands import suspended
from tests.fleets import Fleet, running_fleet
from tests.waiting import until


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("two"), beside=shared, proxies=2) as running:
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


def test_a_list_has_what_is_asked_for_of_the_whole_fleet(two: Fleet) -> None:
    with two.proxy.admin() as admin, two.proxies[1].admin() as other:
        asked_for: Any = {"json": {"task_id": "listed", "group_size": 2}, "headers": {"X-RolloutFleet-Placed": "0"}}
        started = [client.post("/sessions", **asked_for).json() for client in (admin, other)]
        plain, branched, silent, rewarded = (session for group in started for session in group["sessions"])
        said = [chat(session, "Hello?") for session in (plain, branched, branched, rewarded)]
        chat(rewarded, "Hello?", said[-1], "And then?")
        for value in (-1.0, 0.5):
            given = {"reward": value, "turn_id": said[-1]["id"]}
            admin.post(f"/sessions/{rewarded['session_id']}/reward", json=given).raise_for_status()

        def found(**query: Any) -> list[str]:
            answer = admin.get("/sessions", params={"task_id": "listed", "scope": "fleet", **query}).raise_for_status()
            return [each["session_id"] for each in answer.json()["sessions"]]

        names = {name: session["session_id"] for name, session in (("plain", plain), ("branched", branched))}
        names |= {"silent": silent["session_id"], "rewarded": rewarded["session_id"]}
        asked: list[tuple[dict[str, Any], set[str]]] = [
            ({}, {"plain", "branched", "silent", "rewarded"}),
            ({"group_id": started[1]["group_id"]}, {"silent", "rewarded"}),
            ({"rewarded": "true"}, {"rewarded"}),
            ({"rewarded": "false"}, {"plain", "branched", "silent"}),
            ({"min_reward": 0.5, "max_reward": 0.5}, {"rewarded"}),
            ({"max_reward": 0.25}, set()),
            ({"min_branches": 2}, {"branched"}),
            ({"min_turns": 1, "max_turns": 1}, {"plain"}),
            ({"max_tokens": 0}, {"silent"}),
            ({"min_tokens": 1, "min_version": 1, "max_version": 1}, {"plain", "branched", "rewarded"}),
            ({"min_version": 2}, set()),
        ]
        for query, chosen in asked:
            assert sorted(found(**query)) == sorted(names[name] for name in chosen), query
        last = admin.get(f"/sessions/{rewarded['session_id']}").raise_for_status().json()
        assert (last["branches"], last["reward"], last["rewarded"], last["turns"]) == (1, 0.5, 1, 2)
        assert (last["version_min"], last["version_max"]) == (1, 1)
        assert 0 < last["output_tokens"] < last["tokens"]
        assert last["created_at"] < last["last_activity_at"]

        for wrong in ({"min_turns": 2, "max_turns": 1}, {"min_reward": "nan"}, {"rewarded": "so"}, {"group_id": ""}):
            refused = admin.get("/sessions", params={"scope": "fleet", **wrong})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == list(wrong)[-1]
        for name in names.values():
            admin.delete(f"/sessions/{name}").raise_for_status()


def chat(session: dict[str, Any], *said: Any) -> Any:
    """A call, and its answer: texts are the user's, answers the model's."""
    messages: list[Any] = [
        {"role": "user", "content": each} if isinstance(each, str) else each["message"] for each in said
    ]
    with openai.OpenAI(base_url=session["base_url"], api_key=session["api_key"]) as agent:
        answer = agent.chat.completions.create(model="simulated", messages=messages, max_tokens=8)
    return {"id": answer.id, "message": answer.choices[0].message.to_dict()}


def test_a_start_repeated_on_a_full_proxy_is_answered_as_before(two: Fleet) -> None:
    proxy = two.proxy
    sessions = proxy.stats()["sessions"]["open"]
    proxy.stop()
    settings = proxy.settings
    proxy.settings = {**settings, "sessions": {"limits": {"sessions": sessions + 1}}}
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
        until(lambda: two.proxy.sees() == {0})
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
