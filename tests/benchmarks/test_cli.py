"""What the command takes, and that its page tells of every rig."""

import re
from pathlib import Path

import pytest

from benchmarks import cli

README = (Path(cli.__file__).parent / "README.md").read_text()


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
