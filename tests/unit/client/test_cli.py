"""The command line's answers to mistakes: one line, exit status 2, no traceback."""

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.commands import Done, invoke

from rolloutfleet.cli import app
from rolloutfleet.cli.export import described
from rolloutfleet.cli.failures import CommandFailed
from rolloutfleet.cli.show import console, size, span, table
from rolloutfleet.cli.status import forking
from rolloutfleet.cli.up import FIRST_LINE, next_line
from rolloutfleet.wire import Stats

Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`rolloutfleet …` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ROLLOUTFLEET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str, **variables: str) -> Done:
        with pytest.MonkeyPatch.context() as given:
            for name, value in variables.items():
                given.setenv(name, value)
            return invoke(*words)

    return run


def book(folder: Path, **changes: Any) -> Path:
    """The state folder of a fleet whose proxy does not answer."""
    folder.mkdir(parents=True)
    (folder / "admin.key").write_text("rfa-0123456789abcdef\n")
    written: dict[str, Any] = {
        "name": "math",
        "admin_key_file": str(folder / "admin.key"),
        "gateway": {"url": "http://127.0.0.1:1"},
        "engines": [],
        "proxies": [{"ordinal": 0, "url": "http://127.0.0.1:9", "pid": 1}],
    }
    (folder / "fleet.json").write_text(json.dumps({**written, **changes}))
    return folder


class Failing(io.StringIO):
    """A standard output that is a full disk, say."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self._error = error

    def flush(self) -> None:
        raise OSError(self._error, os.strerror(self._error))


@pytest.mark.filterwarnings("ignore:'click.utils.PacifyFlushWrapper':DeprecationWarning")  # typer takes that of click
@pytest.mark.parametrize(
    ("error", "said"),
    [(errno.ENOSPC, "rolloutfleet: [Errno 28] No space left on device\n"), (errno.EPIPE, "")],
    ids=["full", "pipe"],
)
def test_an_output_that_can_not_be_written_ends_a_command_with_status_1(error: int, said: str) -> None:
    done = invoke("--version", stdout=Failing(error))
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["statu"], "No such command 'statu'"),
        (["status", "--jsn"], "No such option"),
        (["turns"], "Missing argument 'SESSION' (see rolloutfleet turns --help)"),
        (["session", "close"], "Missing argument 'SESSION...' (see rolloutfleet session close --help)"),
        (["export", "--max", "x"], "Invalid value for '--max'"),
        (["export", "--session", "a", "--max", "1"], "--session, --group and --max exclude each other"),
        (["export", "--ack"], "--ack deletes what was exported from the fleet, so it needs -o FILE"),
        (["export", "--format", "safetensors"], "safetensors are for a file; give -o FILE"),
        (["status"], "start one with `rolloutfleet up FILE`"),
        (["status", "--state-dir", "here"], "no fleet runs from here"),
        (["status", "--url", "http://127.0.0.1:1"], "--url needs --admin-key-file"),
        (["status", "--url", "http://127.0.0.1:1", "--admin-key-file", "none"], "admin key file none can't be read"),
        (["status", "--url", "http://127.0.0.1:1", "--state-dir", "x"], "name two fleets"),
        (["up", "none.yaml"], "none.yaml: can't be read: No such file or directory"),
        (["up", "bad.yaml"], "bad.yaml: spec.model: is missing"),
        (["up", "good.yaml", "--engine-key-file", "none"], "none is not a file"),
        (["up", "good.yaml", "--wait", "soon"], "--wait: 'soon' is not a valid duration"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(run: Run, tmp_path: Path, words: list[str], problem: str) -> None:
    (tmp_path / "bad.yaml").write_text("kind: RolloutFleet\nmetadata: {name: a}\nspec: {engine: {}}\n")
    (tmp_path / "good.yaml").write_text("kind: RolloutFleet\nmetadata: {name: a}\nspec: {model: m, engine: {}}\n")
    done = run(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert problem in done.stderr
    assert done.stderr.startswith("rolloutfleet: ")
    assert done.stderr.count("\n") == 1


def test_a_log_is_told_of_a_wait_less_and_less_often_but_each_minute() -> None:
    lines = [FIRST_LINE]
    while lines[-1] < 200:
        lines.append(next_line(lines[-1]))
    assert lines == [2, 4, 8, 16, 32, 64, 124, 184, 244]


def test_the_only_fleet_here_is_found_and_one_that_does_not_answer_is_said(run: Run, tmp_path: Path) -> None:
    book(tmp_path / ".rolloutfleet" / "math")
    done = run("sessions")
    assert done.returncode == 1
    assert done.stderr.startswith("rolloutfleet: no proxy answers at http://127.0.0.1:")


def test_of_several_fleets_one_must_be_chosen(run: Run, tmp_path: Path) -> None:
    book(tmp_path / ".rolloutfleet" / "math")
    book(tmp_path / ".rolloutfleet" / "code")
    done = run("status")
    assert done.returncode == 2
    assert "choose one: .rolloutfleet/code, .rolloutfleet/math (--state-dir, " in done.stderr


def test_a_fleet_can_be_named_by_the_environment(run: Run, tmp_path: Path) -> None:
    folder = book(tmp_path / "elsewhere")
    assert "no proxy answers" in run("status", ROLLOUTFLEET_FLEET_FILE=str(folder / "fleet.json")).stderr
    by_url = {"ROLLOUTFLEET_URL": "http://127.0.0.1:1", "ROLLOUTFLEET_ADMIN_KEY_FILE": str(folder / "admin.key")}
    assert "no proxy answers at http://127.0.0.1:1" in run("status", **by_url).stderr


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"proxies": [1]}', '{"proxies": []}'])
def test_a_broken_fleet_file_is_said(run: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(content)
    done = run("status", "--fleet-file", "fleet.json")
    assert done.returncode == 2
    assert "fleet.json" in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_command_explains_itself_and_its_options(run: Run) -> None:
    overview = run()
    assert overview.returncode == 0
    for command in app.registered_commands:
        assert command.name is not None
        assert command.name in overview.stdout
        assert command.callback is not None
        assert command.callback.__doc__
        helped = run(command.name, "--help")
        assert helped.returncode == 0
        assert f"Usage: rolloutfleet {command.name}" in helped.stdout


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield from (
            commands(command, *path, name) if hasattr(command, "commands") else [(" ".join((*path, name)), command)]
        )


def test_every_command_but_up_takes_the_options_that_name_a_fleet() -> None:
    named = ("--state-dir", "--fleet-file", "--url", "--admin-key-file")
    taken = {
        path: [option for parameter in command.params for option in parameter.opts if option in named]
        for path, command in commands(typer.main.get_command(app))
    }
    assert len(taken) > 10
    assert [path for path, options in taken.items() if options != list(named)] == ["up"]


def test_every_command_about_a_session_explains_itself(run: Run) -> None:
    overview = run("session")
    assert overview.returncode == 0
    for name in ("new", "close", "delete", "list"):
        assert name in overview.stdout
        assert f"Usage: rolloutfleet session {name}" in run("session", name, "--help").stdout


def test_figures_read_well() -> None:
    assert [size(amount) for amount in (None, 0, 1023, 1536, 5 * 2**30)] == ["-", "0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [span(seconds) for seconds in (None, 4.6, 123, 3900)] == ["-", "4s", "2m 3s", "1h 5m"]


def test_texts_with_brackets_and_colons_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    said = "[red]task[/red] [/] [1] :bug:"
    shown = table("task")
    shown.add_row(said)
    console().print(shown)
    console().print(said)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["task", said, said]


def test_an_answer_that_is_no_export_is_said() -> None:
    with pytest.raises(CommandFailed, match="not a safetensors file"):
        described(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")


def figures(*, extending: int, branch: int, **forks: int) -> Stats:
    turns = {"extending": extending, "branch": branch}
    return Stats.model_construct(follow_ups=turns, forks=forks)


def test_the_status_warns_where_more_than_one_follow_up_in_twenty_forks() -> None:
    assert forking([]) is None
    assert forking([figures(extending=0, branch=0)]) is None
    assert forking([figures(extending=19, branch=1, content=1), figures(extending=0, branch=0, tools=3)]) is None
    warning = forking([figures(extending=30, branch=1, content=1), figures(extending=7, branch=1, content=1, role=3)])
    assert warning is not None
    assert "2 of 39 follow-up turns (5%)" in warning and "role 3, content 2" in warning
