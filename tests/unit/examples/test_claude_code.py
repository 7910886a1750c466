"""The parts of examples/claude_code that need neither Claude Code nor PyTorch; tests/engine runs the whole."""

from pathlib import Path
from types import SimpleNamespace

from examples.claude_code.__main__ import CUES
from examples.claude_code.agents import environment_of
from examples.claude_code.tasks import TASKS
from tests.agents.programs import documented_variables

from rolloutfleet_engine.cues import read_cues


def test_each_task_has_its_cue() -> None:
    cues = [cue.cue for cue in read_cues(CUES)]
    assert all(any(cue in task.prompt for cue in cues) for task in TASKS)


def test_a_folder_is_worth_the_share_of_its_files_that_are_right(tmp_path: Path) -> None:
    worth = {task.name: task.worth for task in TASKS}
    assert worth["two-helpers"](tmp_path) == worth["count-lines"](tmp_path) == 0
    (tmp_path / "a.txt").write_text("a.txt\n")
    (tmp_path / "b.txt").write_text("a.txt\n")
    (tmp_path / "lines.txt").write_text("  4\n")
    assert (worth["two-helpers"](tmp_path), worth["count-lines"](tmp_path)) == (0.5, 1.0)


def test_what_a_task_begins_with_is_worth_nothing(tmp_path: Path) -> None:
    for task in TASKS:
        for name, text in task.files.items():
            (tmp_path / name).write_text(text)
        assert task.worth(tmp_path) == 0


def test_its_settings_are_the_documented_ones(tmp_path: Path) -> None:
    session = SimpleNamespace(base_url="http://fleet/sessions/s/v1", api_key="k")
    environment = environment_of(session, tmp_path)
    documented = documented_variables("claude-code.md", url="http://fleet/sessions/s", key="k")
    assert documented.items() <= environment.items()
