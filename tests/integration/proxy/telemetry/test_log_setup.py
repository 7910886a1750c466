"""Whatever a process says takes the log's form, its helpers' last words too."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_proxy.telemetry.log_setup import HELPERS_LOG

QUOTE = "what the user said"
AS_JSON = {HELPERS_LOG: json.dumps({"format": "json", "level": "info", "ordinal": 3})}
BEGIN = """
import threading, warnings
from rolloutfleet_proxy.telemetry.log_setup import set_up
set_up(format="json", level="info", ordinal=3)
said = " ".join(["what", "the", "user", "said"])
class Unraisable:
    def __del__(self): raise ValueError(said)
"""


def said_by(*command: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> tuple[int, list[Any]]:
    """The exit status, and what was written to standard error, each line read as JSON."""
    ended = subprocess.run(
        [sys.executable, *command], input=stdin, capture_output=True, timeout=PATIENCE, env=environment, check=False
    )
    return ended.returncode, [json.loads(line) for line in ended.stderr.decode().splitlines()]


@pytest.mark.parametrize(
    ("program", "level", "type_"),
    [
        ("raise ValueError(said)", "critical", "ValueError"),
        ("thread = threading.Thread(target=lambda: {}[said]); thread.start(); thread.join()", "critical", "KeyError"),
        ("Unraisable()", "error", "ValueError"),
    ],
    ids=["uncaught", "thread", "unraisable"],
)
def test_an_uncaught_exception_is_a_line_without_what_it_says(program: str, level: str, type_: str) -> None:
    _, [line] = said_by("-c", BEGIN + program)
    assert (line["event"], line["level"], line["ordinal"]) == ("message", level, 3)
    assert line["trace"].endswith(type_) and QUOTE not in json.dumps(line)


def test_a_warning_is_a_line() -> None:
    status, [line] = said_by("-c", BEGIN + "warnings.warn('careful')")
    assert status == 0 and line["logger"] == "py.warnings" and "careful" in line["message"]


@pytest.mark.parametrize(
    ("helper", "argument", "stdin"),
    [
        ("engine.big_reply", QUOTE, b""),
        ("tokens.render_process", "0", len(QUOTE).to_bytes(4, "big") + QUOTE.encode()),
    ],
)
def test_a_helper_that_fails_says_so_in_its_starters_form(helper: str, argument: str, stdin: bytes) -> None:
    module = f"rolloutfleet_proxy.{helper}"
    status, [line] = said_by("-m", module, argument, stdin=stdin, environment=os.environ | AS_JSON)
    assert status == 1
    assert (line["event"], line["level"], line["ordinal"]) == ("message", "critical", 3)
    assert "Traceback" in line["trace"] and QUOTE not in json.dumps(line)
