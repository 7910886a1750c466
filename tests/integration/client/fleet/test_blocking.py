"""The blocking `Fleet`: Ctrl-C, other processes, threads, and trainers that die with a lease in their hands."""

import asyncio
import json
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.fleets import Fleet as Running
from tests.integration.client.fleet.agents import say, talk_all
from tests.integration.client.fleet.conftest import key_file
from tests.integration.client.fleet.leases import ended_group, taken, until_a_lease_lapses
from tests.integration.client.fleet.trainers import Trainer
from tests.threads import in_threads
from tests.waiting import PATIENCE

from rolloutfleet.fleet import Fleet, FleetClosed, Whereabouts
from rolloutfleet.fleet.blocking import LoopThread

StartTrainer = Callable[[str], Trainer]


@pytest.fixture
def start_trainer(pair: Running) -> Iterator[StartTrainer]:
    """Starts trainers; what still runs of them after the test is killed, so that no lease is renewed for ever."""
    started: list[Trainer] = []

    def start(code: str) -> Trainer:
        started.append(Trainer(pair, code))
        return started[-1]

    yield start
    for trainer in started:
        if trainer.process.returncode is None:
            trainer.kill()


@pytest.mark.usefixtures("nothing_ready")
def test_ctrl_c_in_a_wait_ends_it_and_gives_the_lease_back(start_trainer: StartTrainer, fleet: Fleet) -> None:
    group_id = ended_group(fleet, 2)
    trainer = start_trainer(
        """
        with fleet, fleet.export(count=100) as export:
            for number, trajectory in enumerate(export):
                say(got=trajectory.trajectory_id)
                if number == 1:
                    say_once_it_waits()
        """,
    )
    got = {trainer.hear()["got"] for _ in range(2)}
    assert trainer.hear() == {"waits": True}
    trainer.process.send_signal(signal.SIGINT)
    status, errors = trainer.end()
    assert status != 0
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert {each.trajectory_id for each in taken(fleet, group_id)} == got


def test_ctrl_c_at_any_moment_returns_when_the_work_has_cleaned_up() -> None:
    loop, main = LoopThread(), threading.main_thread().ident or 0
    begun, cleaned = 0, 0

    async def work(delay: float) -> None:
        nonlocal begun, cleaned
        begun += 1
        asyncio.get_running_loop().call_later(delay, signal.pthread_kill, main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(int)  # over more than one step of the loop
            cleaned += 1

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for attempt in range(50):
            with pytest.raises(KeyboardInterrupt):
                loop.run(work(attempt % 5 / 10_000))
            assert begun == cleaned == attempt + 1
    finally:
        signal.signal(signal.SIGINT, before)
        loop.stop()


def test_ctrl_c_while_it_waits_for_room_leaves_nothing_behind(start_trainer: StartTrainer, fleet: Fleet) -> None:
    trainer = start_trainer(
        """
        from rolloutfleet import StalenessManager
        budget = StalenessManager(max_concurrent=1, max_staleness=100, batch_size=100)
        with Fleet(fleet.whereabouts, staleness=budget, progress=False) as fleet:
            try:
                with fleet.start_session() as session:
                    say(session=session.session_id)
                    say_once_it_waits(lambda: budget.counts.enqueued)
                    fleet.start_session()
            finally:
                say(running=budget.counts.running, enqueued=budget.counts.enqueued)
        """,
    )
    session = str(trainer.hear()["session"])
    assert trainer.hear() == {"waits": True}
    trainer.process.send_signal(signal.SIGINT)
    assert trainer.hear() == {"running": 0, "enqueued": 0}
    trainer.end()
    assert getattr(fleet.statuses([session])[session], "code", None) == "session_closed"


@pytest.mark.usefixtures("nothing_ready")
def test_a_trainer_killed_before_it_acknowledges_gets_the_same_again_once(
    start_trainer: StartTrainer, fleet: Fleet
) -> None:
    group_id = ended_group(fleet, 3)
    trainer = start_trainer(
        f"""
        from rolloutfleet.fleet import leases

        leases.RENEWALS = 12  # on a machine that stands still at times
        with fleet.export(group_id="{group_id}", lease_seconds=6) as export:
            say(got=[each.trajectory_id for each in export])
            time.sleep(600)
        """,
    )
    got = trainer.hear()["got"]
    until_a_lease_lapses(fleet, seconds=6)
    # Renewed as long as the trainer lives.
    assert taken(fleet, group_id) == []
    trainer.kill()
    with fleet.export(3, timeout=PATIENCE) as export:
        again = [each.trajectory_id for each in export]
    assert again == got
    assert taken(fleet, group_id) == []


def test_a_trainer_killed_after_it_acknowledged_gets_nothing_again(start_trainer: StartTrainer, fleet: Fleet) -> None:
    group_id = ended_group(fleet, 2)
    trainer = start_trainer(
        f"""
        with fleet.export(group_id="{group_id}", lease_seconds=2) as export:
            export.acknowledge(list(export))
            say(done=True)
            time.sleep(600)
        """,
    )
    trainer.hear()
    trainer.kill()
    until_a_lease_lapses(fleet, seconds=2)
    with fleet.export(group_id=group_id) as export:
        assert list(export) == []
    assert set(export.statuses.values()) == {"gone"}


def test_a_fork_is_told_to_make_its_own(fleet: Fleet) -> None:
    fleet.weights()
    child = os.fork()
    if child == 0:
        try:
            fleet.weights()
        except FleetClosed as error:
            os._exit(7 if "another process" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert fleet.weights().version == fleet.version


def test_a_closed_fleet_says_so_and_closes_again(where: Whereabouts) -> None:
    fleet = Fleet(where)
    fleet.close()
    fleet.close()
    with pytest.raises(FleetClosed, match="has been closed"):
        fleet.weights()


def test_its_end_waits_for_no_thread_of_a_call_that_it_cancels() -> None:
    """One that resolves a name, say: nothing can cancel it."""
    loop = LoopThread()
    begun, ended = threading.Event(), threading.Event()

    def resolve() -> None:
        begun.set()
        ended.wait(PATIENCE)

    try:
        with ThreadPoolExecutor() as callers:
            call = callers.submit(loop.run, asyncio.to_thread(resolve))
            begun.wait()
            loop.stop()
            assert not loop.running
            with pytest.raises(FleetClosed):
                call.result()
            with pytest.raises(FleetClosed):
                loop.run(asyncio.sleep(0))
    finally:
        ended.set()


async def test_it_works_where_an_event_loop_runs_already(where: Whereabouts) -> None:
    """As a notebook's cell calls it: `Fleet` blocks, and then the loop goes on."""
    with Fleet(where, progress=False) as fleet:
        with fleet.start_group(2) as group:
            await talk_all(group)
        with fleet.export(group_id=group.group_id) as export:
            for trajectory in export:
                export.acknowledge(trajectory)
        with fleet.weight_update(fleet.weights().version):
            pass
        assert fleet.turns(fleet.start_session()) == []
        for shown in fleet.sessions(state="open"):
            fleet.delete(shown)
    with pytest.raises(FleetClosed):
        fleet.weights()
    alone = Fleet(where)
    alone.close()


def test_whereabouts_and_trajectories_go_to_other_processes(fleet: Fleet) -> None:
    group_id = ended_group(fleet, 1)
    with fleet.export(group_id=group_id, on_exit="keep") as export:
        sent = pickle.dumps((fleet.whereabouts, list(export)))
    where, trajectories = pickle.loads(sent)
    with Fleet(where) as other:
        other.acknowledge(trajectories)
    assert taken(fleet, group_id) == []


@pytest.mark.usefixtures("nothing_ready")
def test_threads_share_one_fleet_object(fleet: Fleet) -> None:
    group_ids: list[str] = []

    def work() -> None:
        group_ids.append(ended_group(fleet, 1))

    in_threads(work, threads=8)
    with fleet.export(8, timeout=PATIENCE) as export:
        assert {each.group_id for each in export} == set(group_ids)


def test_a_local_fleets_file_is_all_that_is_needed(pair: Running, tmp_path: Path) -> None:
    book = tmp_path / "fleet.json"
    proxies = [{"ordinal": proxy.ordinal, "url": proxy.url, "pid": 1} for proxy in pair.proxies]
    engines = [{"url": engine.url} for engine in pair.engines]
    entries = {"name": "x", "admin_key_file": str(key_file(pair)), "proxies": proxies, "engines": engines}
    book.write_text(json.dumps(entries))
    with Fleet.from_file(tmp_path) as fleet:
        assert [each.ordinal for each in fleet.proxies()] == [0, 1]
        assert [engine.url for engine in fleet.engines] == [engine.url for engine in pair.engines]
        assert fleet.whereabouts.proxies() == tuple(proxy.url for proxy in pair.proxies)


def test_an_export_includes_what_agents_of_any_api_said_and_the_tools_that_they_declared(fleet: Fleet) -> None:
    look = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": look}]
    with fleet.start_session() as session:
        messages, _ = say(session, [{"role": "user", "content": "Begin."}], tools=tools)
        messages, _ = say(session, [*messages, {"role": "user", "content": "Go on."}], tools=tools)
    with fleet.start_session() as other:
        body = {"model": "simulated", "max_tokens": 20, "system": "Be brief.", "messages": messages[:1]}
        said = httpx.post(
            f"{other.base_url}/messages", headers={"x-api-key": other.api_key}, json=body, timeout=PATIENCE
        )
        assert said.status_code == 200, said.text
    with fleet.export(session_ids=[session, other], include=["messages", "tools"], wait=True) as export:
        rows = {trajectory.session_id: trajectory.rows for trajectory in export}
    [row] = rows[session.session_id]
    assert [each["role"] for each in row.messages or []] == ["user", "assistant", "user", "assistant"]
    for exported, known in zip(row.messages or [], messages, strict=True):
        assert exported["content"] == known["content"]
        assert exported.get("reasoning_content") == known.get("reasoning_content")
    assert row.tools == tools
    [row] = rows[other.session_id]
    assert [each["role"] for each in row.messages or []] == ["system", "user", "assistant"]
    assert row.tools == []
