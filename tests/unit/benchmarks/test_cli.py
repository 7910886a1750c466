"""What the command takes, and that its page tells of every rig."""

import re
from pathlib import Path

import pytest
from benchmarks import cli
from benchmarks.rigs import binaries, machine
from benchmarks.rigs.figures import Outcome, figure
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import StartFailed

README = (Path(cli.__file__).parent / "README.md").read_text()


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is compiled, and none is asked for its version."""
    monkeypatch.setattr(binaries, "build", lambda: None)
    monkeypatch.setattr(machine, "describe", dict)


def test_the_page_tells_of_every_rig() -> None:
    told = set(re.findall(r"`(\w+)`", README))
    assert set(cli.RIGS) - told == set()


@pytest.mark.parametrize(
    ("line", "message"),
    [(["nonsense"], "no rig nonsense; there are generator"), (["--pairs", "0"], "0 is not at least 1")],
)
def test_a_mistake_is_told_before_anything_runs(
    line: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*line, "--results", str(tmp_path)])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_figure_of_a_rig_names_it_too_and_it_runs_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs: list[Plan] = []

    def rig(plan: Plan) -> Outcome:
        runs.append(plan)
        return Outcome(figures=[figure("one", "ratio", [1]), figure("other", "ratio", [2])], runs=[])

    rigs = {"one": cli.Rig(rig, "both", beside=("other",))}
    monkeypatch.setattr(cli, "RIGS", rigs)
    monkeypatch.setattr(cli, "TABLE", {})
    monkeypatch.setattr(cli, "REFERENCE", rigs)
    assert cli.main(["other", "one", "--results", str(tmp_path)]) == 0
    assert len(runs) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["latest.json", "one.json"]


def test_a_rig_that_fails_costs_no_other_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails(plan: Plan) -> Outcome:
        raise StartFailed("no such gateway")

    def works(plan: Plan) -> Outcome:
        return Outcome(figures=[figure("speed", "ratio", [0.5])], runs=[])

    rigs = {"bad": cli.Rig(fails, "fails"), "good": cli.Rig(works, "works")}
    monkeypatch.setattr(cli, "RIGS", rigs)
    monkeypatch.setattr(cli, "TABLE", rigs)
    monkeypatch.setattr(cli, "REFERENCE", {})
    assert cli.main(["--results", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out.splitlines() == ["speed 0.5 ratio"]
    assert "no such gateway" in told.err and "no figures from bad" in told.err
    assert [file.name for file in tmp_path.iterdir()] == ["good.json"], "latest.json is for whole runs"
