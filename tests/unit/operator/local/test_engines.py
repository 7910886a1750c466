"""The words for engines that a local fleet waits for."""

import errno
import os
import socket

import httpx
import pytest

from rolloutfleet_operator.local import EnginesAwaited, EnginesMissing
from rolloutfleet_operator.local.engines import failure

REFUSED = "connection refused"


def test_a_missing_engine_is_named_with_reason_and_seconds() -> None:
    awaited = EnginesAwaited({"http://a:1": REFUSED}, 40.4)
    assert str(awaited) == "waiting for engine http://a:1 (connection refused), 40 s"


def test_the_engines_of_a_large_fleet_are_counted_after_the_first_few() -> None:
    missing = {f"http://a:{port}": REFUSED for port in range(1, 8)}
    said = str(EnginesAwaited(missing, 1))
    assert said.startswith("waiting for engines http://a:1 (connection refused), http://a:2 (connection refused), ")
    assert said.endswith(", http://a:5 (connection refused) and 2 more, 1 s")


def test_engines_that_did_not_come_are_named_with_the_time_that_they_had() -> None:
    error = EnginesMissing({"http://a:1": "answers 503", "http://b:1": REFUSED}, 1800.0)
    assert str(error) == "engines http://a:1 (answers 503), http://b:1 (connection refused) did not come within 30m"


def connecting(cause: Exception) -> httpx.ConnectError:
    """An attempt that failed for that cause, as httpx tells of it."""
    try:
        try:
            raise OSError("All connection attempts failed") from cause
        except OSError as error:
            raise httpx.ConnectError("All connection attempts failed") from error
    except httpx.ConnectError as error:
        return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (connecting(ConnectionRefusedError(errno.ECONNREFUSED, "")), REFUSED),
        (connecting(ExceptionGroup("", [ConnectionRefusedError(errno.ECONNREFUSED, ""), OSError()])), REFUSED),
        (connecting(socket.gaierror(socket.EAI_NONAME, "")), "its name can't be resolved"),
        (connecting(OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))), "no connection could be made"),
        (httpx.ReadTimeout(""), "no answer came in time"),
    ],
)
def test_a_failed_request_to_an_engine_is_told_by_its_cause(error: Exception, words: str) -> None:
    assert failure(error) == words
