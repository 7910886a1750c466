"""A line of the log is one line, whatever is in it, and shows no key."""

import json
import logging
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.telemetry.events import CallStarted, LogDropped
from rolloutfleet_proxy.telemetry.log_lines import LONGEST, JsonForm, PlainForm, message_line

JSON, PLAIN = JsonForm(pid=7, ordinal=2), PlainForm(pid=7, ordinal=2)
WALL = 1_795_258_422.0425

any_text = st.text(st.characters(codec="utf-8"), max_size=60)


def started(session_id: str) -> CallStarted:
    return CallStarted(
        call_id="0b0afe79", request_id="req-1", session_id=session_id, messages=1, stream=True, in_flight_before=0
    )


def record(message: str, *values: Any, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("a.library", logging.WARNING, "file", 1, message, values, info)
    return made


def test_a_json_line_has_the_time_the_process_the_event_and_its_fields() -> None:
    line = JSON.event(WALL, logging.INFO, started("s0"))
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "time": "2026-11-21T10:53:42.042Z",
        "level": "info",
        "pid": 7,
        "ordinal": 2,
        "event": "call_started",
        "call_id": "0b0afe79",
        "request_id": "req-1",
        "session_id": "s0",
        "messages": 1,
        "stream": True,
        "in_flight_before": 0,
    }


def test_a_plain_line_says_the_same() -> None:
    assert PLAIN.event(WALL, logging.INFO, started("")) == (
        b"2026-11-21T10:53:42.042Z INFO call_started pid=7 ordinal=2 call_id=0b0afe79 request_id=req-1"
        b' session_id="" messages=1 stream=true in_flight_before=0\n'
    )
    assert PLAIN.event(0.9999, logging.WARNING, LogDropped(lines=3)) == (
        b"1970-01-01T00:00:00.999Z WARNING log_dropped pid=7 ordinal=2 lines=3\n"
    )


@given(any_text)
def test_whatever_a_value_holds_it_stays_on_its_line_and_in_its_field(text: str) -> None:
    line = JSON.event(WALL, logging.INFO, started(text))
    assert line.count(b"\n") == 1 and json.loads(line)["session_id"] == text
    plain = PLAIN.event(WALL, logging.INFO, started(text)).decode()
    assert len(plain.splitlines()) == 1
    assert plain.endswith(" messages=1 stream=true in_flight_before=0\n")
    value = plain.split(" session_id=")[1].removesuffix(" messages=1 stream=true in_flight_before=0\n")
    if value.startswith('"'):
        json.loads(value)
    else:
        assert value == text


@given(st.text(max_size=60))
def test_whatever_a_library_says_is_one_line(text: str) -> None:
    for form in (JSON, PLAIN):
        line = message_line(form, record("%s", text)).decode()
        assert len(line.splitlines() if form is PLAIN else line.split("\n")[:-1]) == 1
    assert json.loads(message_line(JSON, record("%s", text)))["event"] == "message"


def test_a_very_long_message_is_cut() -> None:
    assert len(json.loads(message_line(JSON, record("x" * 10 * LONGEST)))["message"]) < LONGEST + 10


SHOWN_AS_KEYS = (
    "Authorization: Bearer {key}",
    "headers {{'authorization': 'Bearer {key}', 'x-api-key': '{key}'}}",
    "{{b'x-api-key': b'{key}'}}",
    "basic {key}",
)
OURS, FOREIGN = Owner(3, "0123456789ab").key(), "sk-of-the-gateway-0123"


@pytest.mark.parametrize("said", ["a session has {key}", *SHOWN_AS_KEYS])
def test_keys_are_blotted_out_of_what_libraries_say(said: str) -> None:
    for key in (OURS, FOREIGN) if said in SHOWN_AS_KEYS else (OURS,):
        for form in (JSON, PLAIN):
            assert key not in message_line(form, record(said.format(key=key))).decode()
            raised = message_line(form, record("it failed", error=ValueError(said.format(key=key)))).decode()
            assert key not in raised and "ValueError" in raised


def trace_of(*, first: Exception, then: Exception) -> str:
    try:
        try:
            raise first
        except Exception:
            raise then  # noqa: B904
    except Exception as error:
        shown: str = json.loads(message_line(JSON, record("it failed", error=error)))["trace"]
        return shown


def test_what_an_exception_says_is_left_out_where_it_may_quote_a_conversation() -> None:
    said = " ".join(["what", "the", "user", "said"])
    shown = trace_of(first=KeyError(said), then=ValueError(said))
    assert said not in shown
    assert shown.count("test_log_lines.py") >= 2 and shown.index("\nKeyError") < shown.index("\nValueError")


def test_what_the_system_says_is_kept() -> None:
    shown = trace_of(first=sqlite3.OperationalError("no such table"), then=OSError(28, "No space left on device"))
    assert "OperationalError: no such table" in shown and "OSError: [Errno 28] No space left on device" in shown
