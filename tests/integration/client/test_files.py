"""Exports as files: what stands in them, and that no kill loses or doubles anything."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.commands import ran
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet
from tests.integration.client.exports import asked, command, drained, made, read
from tests.integration.client.fleet.conftest import whereabouts
from tests.waiting import until

from rolloutfleet.files.folder import ExportFolder
from rolloutfleet.files.forms import FileForm
from rolloutfleet.files.writing import Progress, export_to
from rolloutfleet.fleet import Fleet
from rolloutfleet.fleet.trajectories import TYPES, Trajectory
from rolloutfleet.formats import sft

RECORDS = [form for form in FileForm if form is not FileForm.SFT]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_fleet(tmp_path_factory.mktemp("files"), proxies=2) as running:
        yield running


@pytest.fixture
def fleet(pair: Running) -> Iterator[Fleet]:
    with Fleet(whereabouts(pair)) as fleet:
        yield fleet


@pytest.mark.parametrize("form", RECORDS)
def test_the_files_hold_what_an_export_hands_out(pair: Running, fleet: Fleet, form: FileForm, tmp_path: Path) -> None:
    drained(fleet)
    sessions = made(fleet, 5)
    with fleet.export(on_exit="keep") as export:
        expected = {each.trajectory_id: each for each in export}
    fleet.release(expected.values())
    done = asked(pair, "--to", form.value, "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    records = read(tmp_path / "out")
    assert {record["session_id"] for record in records} == set(sessions)
    for record in records:
        trajectory = expected.pop(record["trajectory_id"])
        [row] = trajectory.rows
        for name in TYPES:
            assert record[name] == np.asarray(row.tensors[name]).tolist(), name
        assert record["reward"] == row.reward
        assert record["metadata"] == trajectory.metadata
        assert [turn["turn_id"] for turn in record["turns"]] == sessions[record["session_id"]]
        assert record["turns"] == [turn.model_dump() for turn in trajectory.turns]
    assert expected == {}
    audit = fleet.audit()
    assert (audit.sessions.live, audit.sessions.leased, audit.balanced) == (0, 0, True)
    assert "nothing to export now" in asked(pair, "--to", form.value, "-o", str(tmp_path / "out")).stdout


def test_a_branch_is_a_record_of_its_own_with_the_turns_of_its_path(
    pair: Running, fleet: Fleet, tmp_path: Path
) -> None:
    drained(fleet)
    with fleet.start_session() as session:
        for question in ("one", "two"):
            said = [{"role": "user", "content": "begin"}, {"role": "assistant", "content": "x"}]
            talk_on(session, said[:1])
            talk_on(session, [*said, {"role": "user", "content": question}])
    turns = len(session_turns(fleet, pair, session.session_id, tmp_path))
    records = read(tmp_path / "out")
    assert turns == 4 and len(records) > 1
    trained = Counter(
        record["turns"][index]["turn_id"] for record in records for index in set(record["turn_ids"]) - {-1}
    )
    assert len(trained) == 4 and set(trained.values()) == {1}


def talk_on(session: Any, messages: list[dict[str, str]]) -> None:
    import openai

    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        client.chat.completions.create(model="simulated", messages=messages, max_tokens=8)  # type: ignore[arg-type]


def session_turns(fleet: Fleet, pair: Running, session_id: str, tmp_path: Path) -> set[str]:
    done = asked(pair, "--to", "parquet", "-o", str(tmp_path / "out"), "--session", session_id)
    assert done.returncode == 0, done.stderr
    return {turn["turn_id"] for record in read(tmp_path / "out") for turn in record["turns"]}


@pytest.mark.parametrize("form", list(FileForm))
def test_killed_anywhere_and_run_again_nothing_is_lost_or_twice(
    pair: Running, fleet: Fleet, form: FileForm, tmp_path: Path
) -> None:
    """It dies before each renaming or removal of a part's files, and in the middle of parts, until it gets through."""
    drained(fleet)
    made(fleet, 4, turns=1)
    with fleet.export(on_exit="keep") as export:
        leased = list(export)
    fleet.release(leased)
    # Examples have no name. The same tokens may have been sampled twice.
    expected = Counter(tuple(example["input_ids"]) for example in sft.rows(leased))
    folder = tmp_path / "out"
    words = ("--to", form.value, "-o", str(folder), "--part-size", "1Ki", "--lease-seconds", "2")
    with dying(command(pair, *words)[3:]) as run_until:
        for moment in range(1, 40):
            if (status := run_until(moment)) == 0:
                break
            assert status == -signal.SIGKILL
            assert written(folder) <= expected
        else:
            raise AssertionError("it never came to its end")
    assert moment > 5
    assert written(folder) == expected
    assert fleet.audit().sessions.leased == 0
    assert fleet.audit().sessions.live == 0
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".lock"]


def written(folder: Path) -> Counter[tuple[int, ...]]:
    """The rows in finished parts."""
    return Counter(tuple(record["input_ids"]) for record in read(folder))


def test_examples_for_fine_tuning_are_those_of_the_rows_that_train(pair: Running, fleet: Fleet, tmp_path: Path) -> None:
    drained(fleet)
    made(fleet, 3)
    with fleet.start_session("fails") as session:
        talk_on(session, [{"role": "user", "content": "begin"}])
        session.close(outcome="failed")
    with fleet.export(on_exit="keep") as export:
        leased = list(export)
    fleet.release(leased)
    done = asked(pair, "--to", "sft", "-o", str(tmp_path / "out"))
    assert (done.returncode, done.stdout.startswith("4 trajectories")) == (0, True), done
    examples = sft.rows(leased)
    assert len(examples) == 3
    assert sorted(read(tmp_path / "out"), key=str) == sorted(examples, key=str)
    audit = fleet.audit()
    assert (audit.sessions.live, audit.sessions.leased, audit.balanced) == (0, 0, True)


@contextlib.contextmanager
def dying(words: Sequence[str]) -> Iterator[Callable[[int], int]]:
    """Runs the command with these words until a moment, and says how it ended. Its modules are loaded once for all."""
    with subprocess.Popen(
        [sys.executable, "-c", DYING, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        moments, statuses = process.stdin, process.stdout
        assert moments is not None and statuses is not None

        def run_until(moment: int) -> int:
            moments.write(f"{moment}\n")
            moments.flush()
            return int(statuses.readline())

        yield run_until
        moments.close()


DYING = """\
import os, signal, sys
from rolloutfleet.cli import main

def counted(event, arguments):
    global left
    name = str(arguments[0]) if arguments else ""
    if event in ("os.rename", "os.remove") and ".part-" in name or event == "open" and ".held.json.new" in name:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.argv[0] = "rolloutfleet"
while line := sys.stdin.readline():
    if not (process := os.fork()):
        left = int(line)
        os.dup2(2, 1)
        sys.addaudithook(counted)
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
"""Runs the command again and again, each time in a process that kills itself before the nth time that it renames,
removes or notes something."""


def test_a_proxy_that_is_down_when_it_should_hear_is_told_by_the_next_run(
    pair: Running, fleet: Fleet, tmp_path: Path
) -> None:
    drained(fleet)
    sessions = made(fleet, 4, turns=1)
    proxy = next(each for each in pair.proxies if any(name_of_owner(pair, s) == each.ordinal for s in sessions))
    try:
        with ExportFolder(tmp_path / "out", FileForm.JSONL) as folder:
            # All are on their way into one part, and none is acknowledged yet.
            summary = export_to(
                fleet,
                folder,
                part_bytes=2**20,
                lease_seconds=30,
                tell=lambda done: proxy.kill() if done.trajectories == len(sessions) else None,
                most=len(sessions),
            )
        assert summary.unheard > 0
    finally:
        proxy.stop()
        proxy.start()
    done = asked(pair, "--to", "jsonl", "-o", str(tmp_path / "out"), "--lease-seconds", "2")
    assert done.returncode == 0, done.stderr
    assert "were in the folder already" in done.stdout
    assert Counter(record["session_id"] for record in read(tmp_path / "out")) == Counter(list(sessions))
    assert fleet.audit().sessions.live == 0


def test_what_comes_back_right_after_a_pass_is_written_by_another(
    pair: Running, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed run's last lease ends between the pass that was too early and the question whether any is left."""
    drained(fleet)
    sessions = made(fleet, 1, turns=1)
    with fleet.export(lease_seconds=1.0, on_exit="keep") as export:
        assert len(list(export)) == 1
    audit = fleet.audit

    def audit_once_the_lease_is_over() -> Any:
        until(lambda: not audit().sessions.leased)
        return audit()

    monkeypatch.setattr(fleet, "audit", audit_once_the_lease_is_over)
    with ExportFolder(tmp_path / "out", FileForm.JSONL) as folder:
        folder.hold({})
    with ExportFolder(tmp_path / "out", FileForm.JSONL) as folder:
        export_to(fleet, folder, part_bytes=2**20, lease_seconds=1.0)
    assert [record["session_id"] for record in read(tmp_path / "out")] == list(sessions)


def name_of_owner(pair: Running, session_id: str) -> int:
    from rolloutfleet.fleet.proxies import owner_of

    owner = owner_of(session_id)
    assert owner is not None
    return owner


def test_what_another_leased_before_it_was_acknowledged_is_written_and_named(
    pair: Running, fleet: Fleet, tmp_path: Path
) -> None:
    drained(fleet)
    made(fleet, 3)
    with Fleet(whereabouts(pair)) as other, ExportFolder(tmp_path / "out", FileForm.JSONL) as folder:
        taken: list[Trajectory] = []

        def tell(done: Progress) -> None:
            if done.trajectories == 3 and not taken:
                other.release(folder.held())
                with other.export(on_exit="keep") as export:
                    taken.extend(export)

        # More would be leased ahead, and what is given back with it.
        summary = export_to(fleet, folder, part_bytes=2**30, lease_seconds=60.0, tell=tell, most=3)
        assert sorted(summary.lost) == sorted(each.trajectory_id for each in taken)
        assert [len(summary.lost), summary.done.parts, summary.unheard] == [3, 1, 0]
        assert sorted(record["trajectory_id"] for record in read(tmp_path / "out")) == sorted(summary.lost)
        other.acknowledge(taken)
    assert fleet.audit().turns.acknowledged and fleet.audit().balanced


def test_a_terminal_shows_how_far_it_is_and_a_pipe_does_not(pair: Running, fleet: Fleet, tmp_path: Path) -> None:
    drained(fleet)
    made(fleet, 3)
    ours, theirs = os.openpty()
    words = command(pair, "--to", "jsonl", "-o", str(tmp_path / "out"))
    with subprocess.Popen(words, stderr=theirs, env=os.environ | {"TERM": "xterm"}) as process:
        os.close(theirs)
        shown = b""
        # Where the other end is closed there is an error, and no more.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                shown += piece
    os.close(ours)
    assert process.returncode == 0
    assert b"exporting" in shown and b"3/3" in shown
    made(fleet, 1)
    assert asked(pair, "--to", "jsonl", "-o", str(tmp_path / "out")).stderr == ""


def test_ctrl_c_gives_back_what_is_not_written(pair: Running, fleet: Fleet, tmp_path: Path) -> None:
    drained(fleet)
    sessions = made(fleet, 3, turns=1)
    with ExportFolder(tmp_path / "out", FileForm.JSONL) as folder, pytest.raises(KeyboardInterrupt):
        export_to(fleet, folder, part_bytes=2**20, lease_seconds=30, tell=interrupt)
    assert list((tmp_path / "out").glob("*part*")) == []
    assert fleet.audit().sessions.leased == 0
    assert asked(pair, "--to", "jsonl", "-o", str(tmp_path / "out")).returncode == 0
    assert {record["session_id"] for record in read(tmp_path / "out")} == set(sessions)


def interrupt(done: object) -> None:
    raise KeyboardInterrupt


def test_a_disk_without_room_is_said_and_everything_goes_back(pair: Running, fleet: Fleet, tmp_path: Path) -> None:
    drained(fleet)
    made(fleet, 3, turns=2)
    limit = ["bash", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "-"]
    done = ran(*limit, *command(pair, "--to", "jsonl", "-o", str(tmp_path / "out")))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "File too large" in done.stderr
    audit = fleet.audit().sessions
    assert (audit.leased, audit.live) == (0, 3)
    drained(fleet)


def test_most_is_at_most_and_a_safetensors_part_is_what_the_docs_say(
    pair: Running, fleet: Fleet, tmp_path: Path
) -> None:
    drained(fleet)
    made(fleet, 5)
    for most, said in (("3", "3 trajectories"), ("9", "2 trajectories")):
        done = asked(pair, "--to", "jsonl", "-o", str(tmp_path / "few"), "--max", most)
        assert (done.returncode, done.stdout.startswith(said)) == (0, True), done
    assert len(read(tmp_path / "few")) == 5
    made(fleet, 3)
    assert asked(pair, "--to", "safetensors", "-o", str(tmp_path / "out")).returncode == 0
    tensors = load_file(tmp_path / "out" / "part-00000.safetensors")
    assert tensors["cu_seqlens"][-1] == len(tensors["input_ids"]) == len(tensors["turn_ids"])
    assert len(tensors["rewards"]) == 3 and len(tensors["turn_rewards"]) == len(tensors["turn_rewarded"]) == 6
    assert set(tensors["turn_ids"].tolist()) == {-1, *range(6)}
