"""The parent's lines have the forms of the worker's."""

import json
import logging
import os

import pytest

from rolloutfleet_proxy.process.parent_log import LOGGER, Lines
from rolloutfleet_proxy.telemetry.log_lines import FORMS

NOW = 1_700_000_000.25
TEXT = "worker 2 is warm"


@pytest.mark.parametrize("form", ["json", "plain"])
def test_a_line_is_what_the_worker_would_have_written(form: str) -> None:
    written = Lines(ordinal=3, json=form == "json").line(TEXT, "warning", now=NOW) + "\n"
    same = FORMS[form](pid=os.getpid(), ordinal=3).message(NOW, logging.WARNING, LOGGER, TEXT, "")  # type: ignore[index]
    if form == "json":
        assert json.loads(written) == json.loads(same)
    else:
        assert written.encode() == same


def test_what_is_below_the_level_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    lines = Lines(level="warning")
    lines.say("quiet", "info")
    lines.say("loud", "warning")
    said = capfd.readouterr().err
    assert "loud" in said and "quiet" not in said
