"""Rollouts over a fleet of two real proxies: agents of every kind, groups as a trainer takes them, and their ends."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.fleets import Fleet as Running
from tests.integration.client.fleet.agents import say, talk
from tests.integration.client.fleet.conftest import key_file
from tests.waiting import PATIENCE, until

from rolloutfleet import StalenessManager
from rolloutfleet.fleet import (
    AsyncFleet,
    BadArgument,
    Command,
    EpisodeGroup,
    Fleet,
    Gone,
    NotStarted,
    TooManyFailures,
    Whereabouts,
)
from rolloutfleet.fleet.prefetching import Prefetcher


def answer(session: Any, task: Any) -> float:
    """One turn; the reward is the task's."""
    say(session, [{"role": "user", "content": f"Do {task['id']}."}], max_tokens=500)
    return float(task["worth"])


def tasks(number: int) -> list[dict[str, Any]]:
    return [{"id": f"task-{place}", "worth": place} for place in range(number)]


def test_groups_come_whole_with_rows_and_rewards_and_are_acknowledged(fleet: Fleet) -> None:
    before = fleet.audit().turns.acknowledged
    with fleet.rollout(answer, tasks(3), n=2, concurrency=4) as episodes:
        groups = {group.task["id"]: group for group in episodes}
        figures = episodes.metrics(passes=lambda reward: reward > 1)
    assert set(groups) == {"task-0", "task-1", "task-2"}
    for place in range(3):
        group = groups[f"task-{place}"]
        assert group.rewards == [place, place]
        for episode in group:
            assert (episode.outcome, episode.turns, episode.attempt) == ("completed", 1, 0)
            assert [row.reward for row in episode.rows] == [place]
            assert {each.task_id for each in episode.trajectories} == {f"task-{place}"}
    assert (figures["groups"], figures["episodes"], figures["reward"]) == (3, 6, 1.0)
    assert figures["pass@1"] == figures["pass@2"] == pytest.approx(1 / 3)
    assert fleet.audit().turns.acknowledged - before == 6


def test_a_block_that_fails_gives_all_back_and_one_that_keeps_leaves_it_leased(fleet: Fleet) -> None:
    with pytest.raises(ZeroDivisionError), fleet.rollout(answer, tasks(1), n=2) as episodes:
        group = next(episodes)
        raise ZeroDivisionError
    with fleet.export(group_id=group.group_id) as export:
        again = list(export)
    assert {each.trajectory_id for each in again} == {each.trajectory_id for each in group.trajectories}

    with fleet.rollout(answer, tasks(1), n=2, on_exit="keep") as episodes:
        kept = next(episodes)
    with fleet.export(group_id=kept.group_id) as export:
        assert list(export) == []
    before = fleet.audit().turns.acknowledged
    fleet.acknowledge(kept.trajectories)
    assert fleet.audit().turns.acknowledged - before == 2


def test_a_group_is_acknowledged_before_the_end_where_the_trainer_says_so(fleet: Fleet) -> None:
    before = fleet.audit().turns.acknowledged
    with pytest.raises(ZeroDivisionError), fleet.rollout(answer, tasks(2), n=1, ordered=True) as episodes:
        first = next(episodes)
        episodes.acknowledge(first)
        second = next(episodes)
        raise ZeroDivisionError
    assert fleet.audit().turns.acknowledged - before == 1
    with fleet.export(session_ids=[each.episodes[0].session for each in (first, second)]) as export:
        assert [each.session_id for each in export] == [second.episodes[0].session_id]


def test_a_rollout_outside_of_its_block_says_how(fleet: Fleet) -> None:
    with pytest.raises(BadArgument, match="runs in its block"):
        next(fleet.rollout(answer, tasks(1)))
    with fleet.rollout(answer, tasks(1)) as episodes:
        pass
    with pytest.raises(BadArgument, match="runs in its block"):
        next(episodes)


def test_an_agent_that_raises_is_failed_with_its_text_and_no_reward(fleet: Fleet) -> None:
    begun: list[str] = []

    def agent(session: Any, task: str) -> float:
        begun.append(session.session_id)
        first = len(begun) == 1
        say(session, [{"role": "user", "content": "Hello"}], max_tokens=500)
        if first:
            raise RuntimeError("the sandbox died")
        return 1.0

    with fleet.rollout(agent, ["one"], n=2) as episodes:
        group = next(episodes)
    failed, well = sorted(group, key=lambda episode: episode.outcome, reverse=True)
    assert (failed.outcome, failed.reason, failed.reward) == ("failed", "RuntimeError: the sandbox died", None)
    assert (well.outcome, well.reason, well.reward) == ("completed", None, 1.0)
    assert not any(np.asarray(row.tensors["loss_mask"]).any() for row in failed.rows)


def test_a_member_without_a_turn_has_no_rows(fleet: Fleet) -> None:
    def idle(session: Any, task: str) -> None:
        if task == "raise":
            raise RuntimeError("nothing to do")

    with fleet.rollout(idle, ["return", "raise"], n=2) as episodes:
        groups = {group.task: group for group in episodes}
        figures = episodes.metrics()
    assert [episode.rows for group in groups.values() for episode in group] == [(), (), (), ()]
    assert [episode.outcome for episode in groups["raise"]] == ["failed", "failed"]
    assert figures["failed/RuntimeError"] == 2 and "reward" not in figures


def test_the_reward_function_is_asked_where_the_agent_gives_none(fleet: Fleet) -> None:
    def agent(session: Any, task: str) -> str:
        return str(say(session, [{"role": "user", "content": task}], max_tokens=500)[1])

    with fleet.rollout(agent, ["a", "bb"], n=1, reward=lambda session, task: len(task), ordered=True) as episodes:
        assert [group.rewards for group in episodes] == [[1.0], [2.0]]

    def unsure(session: Any, task: str) -> float:
        raise LookupError("no answer key")

    with fleet.rollout(agent, ["a"], n=1, reward=unsure) as episodes:
        (episode,) = next(episodes)
    assert (episode.outcome, episode.reason, episode.reward) == ("failed", "LookupError: no answer key", None)


def test_after_each_compares_members_before_they_are_leased(fleet: Fleet) -> None:
    def longest(group: EpisodeGroup) -> list[float | None]:
        assert all(fleet.status(episode.session).state == "open" for episode in group)
        group.episodes[0].session.reward(0.25)
        return [None, *(float(episode.result) for episode in group.episodes[1:])]

    def agent(session: Any, task: str) -> str:
        say(session, [{"role": "user", "content": task}], max_tokens=500)
        return "7"

    with fleet.rollout(agent, ["a"], n=3, after_each=longest) as episodes:
        assert [group.rewards for group in episodes] == [[0.25, 7.0, 7.0]]


def test_a_member_whose_comparison_can_not_be_rewarded_has_failed_and_the_others_go_on(fleet: Fleet) -> None:
    numbers = iter(range(3))

    async def agent(session: Any, task: str) -> None:
        number = next(numbers)
        if number == 1:
            raise RuntimeError("too hard")
        if number == 2:
            await talk(session, max_tokens=500)

    with fleet.rollout(agent, ["a"], n=3, after_each=lambda group: [1.0] * len(group)) as episodes:
        (group,) = episodes
    found = sorted((each.outcome, each.turns, each.reward, type(each.error).__name__) for each in group)
    assert found == [
        ("completed", 1, 1.0, "NoneType"),
        ("failed", 0, None, "Refused"),
        ("failed", 0, None, "RuntimeError"),
    ]


def test_after_each_may_reward_by_an_array(fleet: Fleet) -> None:
    def agent(session: Any, task: str) -> None:
        say(session, [{"role": "user", "content": task}], max_tokens=500)

    with fleet.rollout(agent, ["a"], n=2, after_each=lambda group: np.linspace(0, 1, len(group))) as episodes:
        assert [group.rewards for group in episodes] == [[0.0, 1.0]]


def test_groups_come_as_they_end(fleet: Fleet) -> None:
    came = threading.Event()

    def agent(session: Any, task: str) -> float:
        say(session, [{"role": "user", "content": task}], max_tokens=500)
        if task == "slow":
            came.wait(PATIENCE)
        return 1.0

    with fleet.rollout(agent, ["slow", "quick"], n=1) as episodes:
        assert next(episodes).task == "quick"
        came.set()
        assert next(episodes).task == "slow"


def test_groups_wait_for_rewards_that_come_later(fleet: Fleet) -> None:
    sessions: list[str] = []

    def agent(session: Any, task: str) -> None:
        say(session, [{"role": "user", "content": task}], max_tokens=500)
        sessions.append(session.session_id)

    def reward_later() -> None:
        until(lambda: sessions and fleet.status(sessions[0]).state == "closed")
        fleet.reward(sessions[0], 0.5)

    judge = threading.Thread(target=reward_later)
    judge.start()
    with fleet.rollout(agent, ["a"], n=1, await_reward=PATIENCE) as episodes:
        assert next(episodes).rewards == [0.5]
    judge.join()


def test_groups_start_as_the_budget_has_room_for_them(where: Whereabouts) -> None:
    budget = StalenessManager(max_concurrent=2, max_staleness=100, batch_size=2)
    most = []

    def agent(session: Any, task: Any) -> float:
        most.append(budget.counts.running)
        return answer(session, task)

    with Fleet(where, staleness=budget, progress=False) as fleet, fleet.rollout(agent, tasks(3), n=2) as episodes:
        assert len(list(episodes)) == 3
    assert max(most) == 2


def test_an_agent_that_takes_too_long_is_truncated_and_still_rewarded(fleet: Fleet) -> None:
    async def slow(session: Any, task: str) -> None:
        await talk(session, max_tokens=500)
        await asyncio.Event().wait()

    with fleet.rollout(slow, ["a"], n=1, timeout=3.0, reward=lambda session, task: 0.5) as episodes:
        (episode,) = next(episodes)
    assert (episode.outcome, episode.reason, episode.reward) == ("truncated", "timeout: 3 s", 0.5)


def test_too_many_failures_end_it_and_say_why(fleet: Fleet) -> None:
    def agent(session: Any, task: int) -> None:
        raise RuntimeError("no such model")

    with pytest.raises(TooManyFailures) as raised, fleet.rollout(agent, range(1000), n=1, concurrency=2) as episodes:
        list(episodes)
    assert str(raised.value).startswith("10 of the last 10 episodes failed")
    assert raised.value.reasons == {"RuntimeError: no such model": 10}


def test_tasks_that_fail_end_it_with_their_error(fleet: Fleet) -> None:
    def broken() -> Any:
        yield "one"
        raise OSError("the dataset is gone")

    agent = partial(print, end="")
    with pytest.raises(OSError, match="dataset"), fleet.rollout(agent, broken(), n=1) as episodes:
        list(episodes)


def test_tasks_may_ask_the_fleet(fleet: Fleet) -> None:
    def curriculum() -> Iterator[dict[str, Any]]:
        for task in tasks(2):
            yield task | {"version": fleet.weights().version}

    with fleet.rollout(answer, curriculum(), n=1) as episodes:
        assert len(list(episodes)) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n": 0}, "n"),
        ({"max_failures": 2.0}, "max_failures"),
        ({"quorum": 1}, "quorum"),
        ({"on_exit": "drop"}, "on_exit"),
        ({"tasks": "one"}, "tasks"),
        ({"agent": "solve"}, "agent"),
        ({"retries": -1}, "retries"),
        ({"deadline": 0.0, "quorum": 1}, "deadline"),
        ({"concurency": 4}, "concurency"),
        ({"export": {"lease_seconds": 0}}, "export.lease_seconds"),
        ({"export": {"lease": 60.0}}, "export"),
        ({"export": {"group_id": "g0-1"}}, "export"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_starts(fleet: Fleet, options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadArgument) as raised:
        fleet.rollout(**{"agent": lambda session, task: None, "tasks": ["one"], **options})
    assert raised.value.argument == named


def test_an_agent_that_could_not_connect_is_run_again_in_the_place_of_its_session(fleet: Fleet) -> None:
    sessions: list[str] = []

    def agent(session: Any, task: str) -> float:
        sessions.append(session.session_id)
        say(session, [{"role": "user", "content": "Hello"}], max_tokens=500)
        if len(sessions) == 1:
            raise RuntimeError("the sandbox died") from ConnectionRefusedError(111, "refused")
        return 1.0

    before = fleet.audit().turns.discarded.get("replaced", 0)
    with fleet.rollout(agent, ["a"], n=1) as episodes:
        (episode,) = group = next(episodes)
    assert (episode.attempt, episode.session_id, len(sessions)) == (1, sessions[1], 2)
    assert [each.session_id for each in group.trajectories] == [sessions[1]]
    assert group.rewards == [1.0]
    assert fleet.audit().turns.discarded["replaced"] == before + 1

    def refused(session: Any, task: str) -> None:
        raise ConnectionRefusedError("again")

    with fleet.rollout(refused, ["a"], n=1, retries=2) as episodes:
        (episode,) = next(episodes)
    assert (episode.attempt, episode.outcome, episode.reason) == (2, "failed", "ConnectionRefusedError: again")


def test_an_agent_is_run_again_for_what_retry_on_names_alone(fleet: Fleet) -> None:
    def agent(session: Any, task: type[Exception]) -> None:
        raise task

    options: Any = {"retry_on": (OSError,), "max_failures": 1.0}
    with fleet.rollout(agent, [LookupError, FileNotFoundError], n=1, ordered=True, **options) as episodes:
        assert [episode.attempt for group in episodes for episode in group] == [0, 1]


def test_an_agent_whose_session_has_no_successor_has_failed(fleet: Fleet) -> None:
    def gone(session: Any, task: str) -> None:
        if task == "ends":
            session.delete()
            raise ConnectionRefusedError

    with fleet.rollout(gone, ["ends", "stays"], n=1, ordered=True) as episodes:
        ((ended,), (well,)) = episodes
    assert (ended.outcome, ended.attempt, type(ended.error)) == ("failed", 0, Gone)
    assert well.outcome == "completed"


def test_a_group_comes_without_its_last_once_its_deadline_is_over(fleet: Fleet) -> None:
    begun: list[str] = []

    async def agent(session: Any, task: str) -> float:
        begun.append(session.session_id)
        await talk(session, max_tokens=500)
        if session.session_id == begun[0]:
            await asyncio.Event().wait()
        return 1.0

    with fleet.rollout(agent, ["a"], n=3, quorum=2, deadline=1.0) as episodes:
        group = next(episodes)
    ended = {episode.session_id: (episode.outcome, episode.reward) for episode in group}
    assert ended.pop(begun[0]) == ("aborted", None)
    assert set(ended.values()) == {("completed", 1.0)}


def test_an_evaluation_is_greedy_rewarded_and_never_exported(fleet: Fleet) -> None:
    before = fleet.audit().turns
    with fleet.rollout(answer, tasks(2), n=2, train=False, ordered=True) as episodes:
        groups = list(episodes)
        figures = episodes.metrics()
    assert [group.rewards for group in groups] == [[0.0, 0.0], [1.0, 1.0]]
    assert (figures["pass@1"], figures["reward"], figures["turns"]) == (0.5, 0.5, 1.0)
    statuses = [fleet.status(episode.session) for group in groups for episode in group]
    assert figures["tokens"] == sum(status.tokens for status in statuses) / 4 > 0
    assert [group.trajectories for group in groups] == [[], []]
    (turn,) = fleet.turns(groups[1].episodes[0].session)
    assert turn.sampling is not None and turn.sampling.temperature == 0.0
    warm = {"overrides": {"temperature": 0.5}}
    with fleet.rollout(answer, tasks(1), n=1, train=False, sampling=warm) as episodes:
        (episode,) = next(episodes)
    (turn,) = fleet.turns(episode.session)
    assert turn.sampling is not None and turn.sampling.temperature == 0.5
    after = fleet.audit().turns
    assert (after.leased, after.acknowledged) == (before.leased, before.acknowledged)


async def test_asyncio_runs_agents_of_both_kinds(where: Whereabouts) -> None:
    async def agent(session: Any, task: str) -> float:
        await talk(session, max_tokens=500)
        return 1.0

    def blocks(session: Any, task: str) -> None:
        say(session, [{"role": "user", "content": task}], max_tokens=500)
        session.reward(0.5)

    async with AsyncFleet(where, progress=False) as fleet:
        for each, reward in ((agent, 1.0), (blocks, 0.5)):
            async with fleet.rollout(each, ["a", "b"], n=2) as episodes:
                groups = [group async for group in episodes]
            assert [group.rewards for group in groups] == [[reward, reward]] * 2
            assert {episode.versions for group in groups for episode in group} == {(1, 1)}


def test_a_command_finds_its_session_and_task_but_no_admin_key_and_says_why_it_failed(
    fleet: Fleet, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTFLEET_ADMIN_KEY_FILE", "admin.key")
    script = tmp_path / "agent.py"
    script.write_text(
        "import json, os, sys, urllib.request\n"
        "url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
        "body = {'model': 'm', 'max_tokens': 500, 'messages': [{'role': 'user', 'content': sys.argv[1]}]}\n"
        "request = urllib.request.Request(url, json.dumps(body).encode(),\n"
        "    {'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY'], 'content-type': 'application/json'})\n"
        "json.load(urllib.request.urlopen(request))\n"
        "assert json.loads(os.environ['ROLLOUTFLEET_TASK'])['id'] == sys.argv[1]\n"
        "assert 'ROLLOUTFLEET_ADMIN_KEY_FILE' not in os.environ\n"
        "sys.exit('out of luck' if sys.argv[1] == 'task-1' else 0)\n"
    )
    command = Command([sys.executable, str(script), "{id}"])
    with fleet.rollout(command, tasks(2), n=1, reward=lambda session, task: 1.0, ordered=True) as episodes:
        (well,), (ill,) = episodes
    assert (well.outcome, well.reward, well.turns) == ("completed", 1.0, 1)
    assert (ill.outcome, ill.reward) == ("failed", None)
    assert ill.reason == f"AgentError: {sys.executable} ended with exit status 1: out of luck"


def test_a_command_is_looked_for_in_its_own_folder_and_run_again_where_it_can_not_be_started(
    fleet: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "agent").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "agent").chmod(0o755)
    with fleet.rollout(Command(["./agent"], cwd=tmp_path), ["a"], n=1) as episodes:
        (found,) = next(episodes)
    assert (found.attempt, found.reason) == (0, "AgentError: ./agent ended with exit status 3")
    with fleet.rollout(Command(["./agent"]), ["a"], n=1) as episodes:
        (missing,) = next(episodes)
    assert (missing.attempt, missing.outcome, type(missing.error)) == (1, "failed", NotStarted)
    assert str(missing.reason).startswith("NotStarted: ./agent could not be started: [Errno 2] No such file")


def test_a_command_has_ended_though_a_process_that_it_detached_holds_its_output(fleet: Fleet, tmp_path: Path) -> None:
    detached = tmp_path / "detached"
    command = Command(f"setsid sleep 1000 & echo $! > {detached}; echo done; exit 3")
    try:
        with fleet.rollout(command, ["a"], n=1, timeout=PATIENCE) as episodes:
            (found,) = next(episodes)
        assert found.reason == "AgentError: /bin/sh ended with exit status 3: done"
    finally:
        psutil.Process(int(detached.read_text())).kill()


def test_leaving_early_ends_agents_and_closes_their_sessions(fleet: Fleet, pair: Running) -> None:
    begun = threading.Event()
    sessions: list[str] = []

    async def endless(session: Any, task: str) -> None:
        await talk(session, max_tokens=500)
        sessions.append(session.session_id)
        begun.set()
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt), fleet.rollout(endless, ["a"], n=1):
        begun.wait()
        raise KeyboardInterrupt
    (status,) = fleet.statuses(sessions).values()
    assert (status.state, status.outcome, status.outcome_reason) == ("closed", "aborted", "the rollout was ended")  # type: ignore[union-attr]


async def test_leaving_while_a_group_is_leased_gives_it_back(
    where: Whereabouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased, stop = asyncio.Event(), Prefetcher.stop

    async def slowly(self: Prefetcher) -> None:
        await stop(self)
        leased.set()
        await asyncio.sleep(PATIENCE)

    monkeypatch.setattr(Prefetcher, "stop", slowly)
    async with AsyncFleet(where, progress=False) as fleet:
        before = (await fleet.audit()).turns.leased
        with pytest.raises(RuntimeError, match="of the trainer"):
            async with fleet.rollout(answer, tasks(1), n=1):
                await leased.wait()
                raise RuntimeError("of the trainer")
        assert (await fleet.audit()).turns.leased == before


TRAINER = """
import sys
from rolloutfleet import Command, Fleet
fleet = Fleet.from_url(sys.argv[1], admin_key_file=sys.argv[2], progress=False)
with fleet.rollout(Command(sys.argv[3]), ["a"], n=2) as episodes:
    for group in episodes:
        pass
"""
AGENT = """
sleep 1000 &
echo $OPENAI_BASE_URL >> {folder}/sessions
echo $! >> {folder}/children
echo $$ >> {folder}/agents
wait
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_commands_end_with_their_trainer_and_all_that_they_started(
    pair: Running, fleet: Fleet, tmp_path: Path, end: int
) -> None:
    words = [pair.proxy.url, str(key_file(pair)), AGENT.format(folder=tmp_path)]
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, *words], stderr=subprocess.PIPE)

    def started() -> list[int]:
        files = [tmp_path / name for name in ("agents", "children")]
        return [int(pid) for file in files if file.exists() for pid in file.read_text().split()]

    until(lambda: len(started()) == 4)
    trainer.send_signal(end)
    _, said = trainer.communicate(timeout=PATIENCE)
    until(lambda: not any(map(psutil.pid_exists, started())), state=started)
    if end == signal.SIGINT:
        assert b"KeyboardInterrupt" in said
        sessions = [url.split("/")[-2] for url in (tmp_path / "sessions").read_text().split()]
        assert {type(each) for each in fleet.statuses(sessions).values()} == {Gone}, "closed, without a turn"
