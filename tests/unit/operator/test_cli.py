"""The operator's command, but for what it runs."""

from typing import Any

import pytest

from rolloutfleet_operator import cli, crd
from rolloutfleet_operator.cluster import run as running
from rolloutfleet_operator.cluster.settings import OperatorSettings


def ended(*arguments: str) -> Any:
    """The status that the command ends with."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code


def test_crd_prints_the_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("crd") == 0
    assert capsys.readouterr().out == crd.page()


def test_a_flag_that_can_not_be_used_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("run", "--listen", "everywhere") == 2
    assert "--listen: write it like 0.0.0.0:8080" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [(None, 0, ""), (running.CantRun("no cluster"), 2, "no cluster"), (KeyboardInterrupt(), 130, "")],
)
def test_run_ends_as_the_operator_does(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException | None,
    status: int,
    said: str,
) -> None:
    given: list[OperatorSettings] = []

    async def run(settings: OperatorSettings) -> None:
        given.append(settings)
        if raised is not None:
            raise raised

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setattr("rolloutfleet_operator.cluster.logs.set_up", lambda form, level: None)
    monkeypatch.setenv("ROLLOUTFLEET_OPERATOR_PROXY_IMAGE", "proxy:2")
    assert ended("run", "--namespace", "rl") == status
    assert (given[0].namespace, given[0].proxy_image) == ("rl", "proxy:2")
    assert said in capsys.readouterr().err
