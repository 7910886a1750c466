"""What sessions are started with, over a fleet of two proxies, whoever is asked."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.waiting import until

from rolloutfleet import Fleet as TrainersFleet
from rolloutfleet import StalenessManager


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("two"), beside=shared, proxies=2) as running:
        yield running


def chat(session: AgentSession) -> tuple[int, str | None]:
    """Status and error code."""
    answer = session.raw_chat({"model": "simulated", "messages": [{"role": "user", "content": "Hello?"}]})
    return answer.status_code, answer.json().get("error", {}).get("code")


def test_a_session_is_replaced_through_a_proxy_that_does_not_own_it(two: Fleet) -> None:
    old = two.proxy.start_session(here=True, task_id="again")
    assert chat(old)[0] == 200
    with two.proxies[1].admin() as other:
        asked: Any = {"json": {"replaces": old.session_id}, "headers": {"Idempotency-Key": "again"}}
        answers = [other.post("/sessions", **asked).raise_for_status().json() for _ in range(2)]
    assert answers[0]["session_id"] == answers[1]["session_id"] != old.session_id
    assert answers[0]["ordinals"] == [0]
    assert chat(old) == (410, "session_closed")
    new = AgentSession(two.proxy, **{name: answers[1][name] for name in ("session_id", "api_key", "base_url")})
    assert chat(new)[0] == 200
    assert new.show()["task_id"] == "again"
    audit = two.proxy.audit()
    assert audit["balanced"] and audit["turns"]["discarded"] == {"replaced": 1}


def test_a_groups_deadline_closes_what_is_open_also_after_a_restart(two: Fleet) -> None:
    proxy = two.proxies[1]
    with proxy.admin() as admin:
        asked = {"group_size": 2, "group": {"quorum": 1, "deadline": 1.0}, "await_reward": 3600.0}
        placed = {"X-RolloutFleet-Placed": "1"}
        group = admin.post("/sessions", json=asked, headers=placed).raise_for_status().json()
    ended, slow = (AgentSession(proxy, **session) for session in group["sessions"])
    for session in (ended, slow):
        assert chat(session)[0] == 200
    with proxy.admin() as admin:
        admin.post(f"/sessions/{ended.session_id}/close").raise_for_status()
    proxy.stop()
    proxy.start()
    proxy.wait_until_ready()
    until(lambda: slow.show()["state"] == "closed")
    shown = slow.show()
    assert (shown["outcome"], shown["outcome_reason"], shown["await_reward"]) == ("aborted", "group_deadline", 3600.0)
    assert chat(slow) == (410, "group_closed")
    with proxy.admin() as admin:
        waiting = admin.post("/export", json={"group_id": group["group_id"]}).raise_for_status().json()
        assert [each["status"] for each in waiting["sessions"]] == ["not_ready", "not_ready"]
        for session in (ended, slow):
            admin.post(f"/sessions/{session.session_id}/reward", json={"reward": 1.0}).raise_for_status()
        export = admin.post("/export", json={}).raise_for_status().json()
    assert [each["status"] for each in export["sessions"]] == ["leased", "leased"]
    assert proxy.audit()["balanced"]


def test_an_evaluation_is_rewarded_after_its_end_and_named_in_exports(two: Fleet) -> None:
    session = two.proxy.start_session(here=True, train=False)
    assert chat(session)[0] == 200
    with two.proxy.admin() as admin:
        admin.post(f"/sessions/{session.session_id}/close").raise_for_status()
        admin.post(f"/sessions/{session.session_id}/reward", json={"reward": 1.0}).raise_for_status()
        export = admin.post("/export", json={"session_ids": [session.session_id]}).raise_for_status().json()
        assert export["lease_id"] is None and export["sessions"][0]["status"] == "evaluation"
        listed = admin.get("/sessions").raise_for_status().json()["sessions"]
    assert {each["session_id"]: each["train"] for each in listed}[session.session_id] is False
    assert session.show()["reward"] == 1.0 and session.show()["train"] is False


def test_a_trainer_runs_an_episode_again_without_a_place_to_spare(two: Fleet) -> None:
    budget = StalenessManager(max_concurrent=2, max_staleness=1, batch_size=2)
    with TrainersFleet.from_url(two.proxy.url, admin_key=two.proxy.key, staleness=budget) as fleet:
        fleet.set_version(1)
        group = fleet.start_group(2, "task", quorum=1, deadline=3600.0, await_reward=60.0)
        first, second = group
        with fleet.start_session("task", train=False) as evaluated, first:
            again = fleet.start_session("task", replaces=first, await_reward=60.0)
            assert budget.counts.running == 2 and fleet.status(evaluated).train is False
        assert (again.group_id, fleet.status(again).state) == (group.group_id, "open")
        for session in (again, second):
            fleet.close_session(session)
        assert budget.counts.running == 0
        assert fleet.audit().balanced
