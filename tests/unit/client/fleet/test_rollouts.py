"""Rollouts: figures of groups, how a command is given its task, and what becomes of sessions at the end."""

import asyncio
import concurrent.futures
import itertools
import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.fleet.rollout_proxy import Proxy, serving
from tests.waiting import PATIENCE

from rolloutfleet import AsyncFleet, StalenessManager
from rolloutfleet.fleet import NotNow, TookTooLong, TooManyFailures
from rolloutfleet.fleet.rollouts.agents import AgentError, Command, call, is_async
from rolloutfleet.fleet.rollouts.episodes import Episode, EpisodeGroup, Figures, is_positive, metrics, pass_at
from rolloutfleet.fleet.rollouts.rollout import task_id_of
from rolloutfleet.fleet.sessions import Handle
from rolloutfleet.wire import CloseSession, SessionStatus


def group(*rewards: float | None, **options: Any) -> EpisodeGroup:
    statuses = [
        SessionStatus(session_id="s0-1", group_id="g0-1", state="closed", created_at=0.0, reward=reward)
        for reward in rewards
    ]
    episodes = [Episode(task="a", session=None, status=status, ending=CloseSession(), **options) for status in statuses]
    return EpisodeGroup(place=0, group_id="g0-1", task="a", episodes=episodes)


def figures(*groups: EpisodeGroup) -> dict[str, float]:
    return metrics([[Figures.of(episode) for episode in group] for group in groups], passes=is_positive)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_draws_in_which_one_has_passed(passed: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passed)))
    draws = list(itertools.combinations(passed, k))
    assert math.isclose(pass_at(k, members=len(passed), passed=sum(passed)), sum(map(any, draws)) / len(draws))


def test_figures_leave_out_what_has_no_reward_but_count_it_among_those_that_did_not_pass() -> None:
    found = figures(group(1.0, 0.0, None, None), group(1.0, 1.0, 1.0))
    assert (found["groups"], found["episodes"], found["reward"]) == (2, 7, 0.8)
    assert found["pass@1"] == pytest.approx((0.25 + 1.0) / 2)
    assert found["pass@2"] == pytest.approx((0.5 + 1.0) / 2)
    assert "pass@4" not in found and "age" not in found and "tokens" not in found


def test_figures_count_failures_by_their_kind() -> None:
    failed = group(None, None)
    failed.episodes[0].ending = CloseSession(outcome="failed", reason="RuntimeError: one")
    failed.episodes[1].ending = CloseSession(outcome="failed", reason="RuntimeError: two")
    found = figures(failed, group(1.0))
    assert (found["failed/RuntimeError"], found["outcome/failed"], found["outcome/completed"]) == (2, 2, 1)


def test_figures_of_nothing_are_counts() -> None:
    assert figures() == {"groups": 0, "episodes": 0}


@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        ("say {id}", ["run", "say {id}", "{id}", "{"]),
        ({"id": 7, "task": "{id}"}, ["run", "{id}", "7", "{"]),
        ({"steps": [1, 2]}, ["run", '{"steps": [1, 2]}', "{id}", "{"]),
    ],
)
def test_a_command_is_given_its_task_once_and_nothing_else_is_replaced(task: Any, arguments: list[str]) -> None:
    assert Command(["run", "{task}", "{id}", "{"]).arguments(task) == arguments


def test_a_line_is_for_a_shell_and_left_as_it_is() -> None:
    assert Command("echo {task} $ROLLOUTFLEET_TASK").arguments("x") == [
        "/bin/sh",
        "-c",
        "echo {task} $ROLLOUTFLEET_TASK",
    ]


@pytest.mark.parametrize(
    ("task", "fits"), [("é", True), ("x" * 100 * 2**10, True), ("é" * 50 * 2**10 + "x", False), ("a\0b", False)]
)
def test_a_task_is_in_a_file_and_in_a_variable_where_that_can_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, fits: bool
) -> None:
    monkeypatch.setenv("ROLLOUTFLEET_TASK", "of the trainer itself")
    session = Handle(session_id="s0-1", api_key="key", base_url="http://proxy/v1", group_id="g0-1")
    given = Command("agent").environment(session, task, home=tmp_path)
    assert Path(given["ROLLOUTFLEET_TASK_FILE"]).read_text(encoding="utf-8") == task
    assert given.get("ROLLOUTFLEET_TASK") == (task if fits else None)


@pytest.mark.parametrize(("task", "name"), [("a", "3"), ({"id": 5}, "5"), ({"task_id": "t", "id": 5}, "t"), ({}, "3")])
def test_a_task_is_named_by_itself_or_its_place(task: Any, name: str) -> None:
    assert task_id_of(task, 3) == name


def test_objects_whose_call_is_a_coroutine_function_are_asynchronous() -> None:
    class Agent:
        async def __call__(self, session: Any, task: Any) -> None: ...

    async def function() -> None: ...

    assert is_async(Agent()) and is_async(function)
    assert not is_async(Agent) and not is_async(print)


@pytest.mark.parametrize(
    "error", [SystemExit(3), StopIteration(), concurrent.futures.CancelledError(), asyncio.CancelledError()], ids=repr
)
async def test_agents_that_raise_what_would_end_the_event_loop_raise_an_error(error: BaseException) -> None:
    def blocks() -> None:
        raise error

    async def waits() -> None:
        raise error

    for agent in (blocks, waits) if isinstance(error, SystemExit | asyncio.CancelledError) else (blocks,):
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(AgentError):
                await call(agent)


async def test_a_function_that_returns_a_coroutine_is_told_so() -> None:
    async def waits() -> None: ...

    with pytest.raises(AgentError, match="returned a coroutine"):
        await call(lambda: waits())


async def test_a_cancelled_call_is_cancelled_whatever_its_agent_does() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    release = threading.Event()
    for agent in (waits, release.wait):
        running = asyncio.create_task(call(agent))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    release.set()


async def nothing(session: Any, task: Any) -> None: ...


def small_budget() -> StalenessManager:
    return StalenessManager(max_concurrent=4, max_staleness=1, batch_size=2)


async def test_sessions_that_a_rollout_gives_back_leave_the_budget_until_they_are_exported() -> None:
    budget = small_budget()
    async with serving(Proxy(), staleness=budget) as fleet:
        for _ in range(2):
            with pytest.raises(MemoryError):
                async with asyncio.timeout(PATIENCE), fleet.rollout(nothing, itertools.count(), n=2) as episodes:
                    await anext(episodes)
                    await anext(episodes)
                    raise MemoryError
            assert (budget.counts.running, budget.counts.accepted) == (0, 0)
        async with fleet.export() as export:
            assert len([each async for each in export]) == 8
        assert (budget.counts.running, budget.counts.accepted) == (0, 8), "what is there is there"
        assert fleet._slots.sessions() == []


@pytest.mark.parametrize("on_exit", ["acknowledge", "keep"])
async def test_sessions_of_a_rollout_that_are_trained_keep_their_places_and_others_do_not(on_exit: Any) -> None:
    budget = small_budget()
    async with serving(Proxy(), staleness=budget) as fleet:
        async with fleet.rollout(nothing, itertools.count(), n=2, on_exit=on_exit) as episodes:
            group = await anext(episodes)
        assert (budget.counts.running, budget.counts.accepted) == (0, 2)
        if on_exit == "keep":
            await fleet.acknowledge(group.trajectories)
        assert (budget.counts.running, budget.counts.accepted) == (0, 2)


async def test_a_start_that_waits_while_nothing_runs_says_so(caplog: pytest.LogCaptureFixture) -> None:
    budget = small_budget()
    async with serving(Proxy(), staleness=budget) as fleet:
        budget.on_version_recovered(0, held=4)
        with pytest.raises(TookTooLong), caplog.at_level(logging.WARNING, "rolloutfleet.fleet"):
            await fleet.start_session(timeout=29.0)
        assert caplog.messages == []
        with pytest.raises(TookTooLong), caplog.at_level(logging.WARNING, "rolloutfleet.fleet"):
            await fleet.start_session(timeout=100.0)
    [told] = caplog.messages
    assert "0 running, 4 accepted" in told


async def test_an_evaluation_whose_status_can_not_be_had_has_failed() -> None:
    proxy = Proxy()
    proxy.refuses = ("GET /sessions/",)
    async with serving(proxy, patience=1.0) as fleet, fleet.rollout(nothing, ["a"], n=1, train=False) as episodes:
        [episode] = await anext(episodes)
        assert (episode.outcome, episode.reward) == ("failed", None)
        assert isinstance(episode.error, NotNow)
        assert episodes.metrics()["failed/NotNow"] == 1


async def test_an_evaluation_ended_as_the_fleet_says() -> None:
    proxy = Proxy()
    proxy.status = {"outcome": "truncated", "outcome_reason": "length"}
    async with serving(proxy) as fleet, fleet.rollout(nothing, ["a"], n=1, train=False) as episodes:
        [episode] = await anext(episodes)
    assert (episode.outcome, episode.reason) == ("truncated", "length")


async def raises(session: Any, task: Any) -> None:
    raise ImportError("no module named sandbox")


async def run_all(fleet: AsyncFleet, agent: Any, *, tasks: int, n: int, **options: Any) -> int:
    """The number of groups that come."""
    async with fleet.rollout(agent, range(tasks), n=n, **options) as episodes:
        return len([group async for group in episodes])


@pytest.mark.parametrize(("tasks", "n"), [(1, 1), (1, 8), (2, 4)])
async def test_a_small_rollout_in_which_all_fail_says_so_at_its_end(tasks: int, n: int) -> None:
    async with serving(Proxy()) as fleet:
        with pytest.raises(TooManyFailures, match=f"{tasks * n} of the last {tasks * n} episodes failed"):
            await run_all(fleet, raises, tasks=tasks, n=n)
        assert await run_all(fleet, raises, tasks=1, n=n, max_failures=1.0) == 1


async def test_failures_are_counted_over_the_rollouts_of_a_fleet() -> None:
    async with serving(Proxy()) as fleet:
        assert await run_all(fleet, nothing, tasks=1, n=2) == 1
        for _ in range(3):
            assert await run_all(fleet, raises, tasks=1, n=2) == 1
        with pytest.raises(TooManyFailures, match="8 of the last 10 episodes failed"):
            await run_all(fleet, raises, tasks=1, n=2)
        for _ in range(3):
            assert await run_all(fleet, nothing, tasks=1, n=4) == 1


async def test_members_that_fail_in_the_comparison_count_as_failures() -> None:
    async with serving(Proxy()) as fleet:  # which knows no rewards
        with pytest.raises(TooManyFailures, match=r"2 of the last 2 episodes failed .*2 x NotKnown"):
            await run_all(fleet, nothing, tasks=1, n=2, after_each=lambda group: [1.0] * len(group))


async def test_a_rollout_that_discards_leaves_nothing_however_it_ends() -> None:
    proxy, budget = Proxy(), small_budget()
    async with serving(proxy, staleness=budget) as fleet:
        async with fleet.rollout(nothing, ["a"], n=2, on_exit="discard") as episodes:
            (group,) = [group async for group in episodes]
        assert [len(episode.trajectories) for episode in group] == [1, 1]
        with pytest.raises(MemoryError):
            async with fleet.rollout(nothing, itertools.count(), n=2, on_exit="discard") as episodes:
                await anext(episodes)
                raise MemoryError
        assert set(proxy.sessions.values()) == {"deleted"}
        assert (budget.counts.running, budget.counts.accepted) == (0, 0)


@pytest.mark.parametrize(
    ("text", "refused"), [("1.0", True), (" -3\n", True), ("", False), ("...", False), ("4 apples", False)]
)
async def test_a_text_that_reads_as_a_number_is_refused_as_a_reward(text: str, refused: bool) -> None:
    async def says(session: Any, task: Any) -> str:
        return text

    async with serving(Proxy()) as fleet:
        async with fleet.rollout(says, ["a"], n=1) as episodes:
            [episode] = await anext(episodes)
        assert (episode.ending.outcome, isinstance(episode.error, TypeError)) == (
            ("failed", True) if refused else (None, False)
        )
        async with fleet.rollout(says, ["a"], n=1, after_each=lambda group: None) as episodes:
            [episode] = await anext(episodes)
        assert episode.error is None
