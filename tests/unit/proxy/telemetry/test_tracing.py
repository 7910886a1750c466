"""Which variables of OpenTelemetry make a proxy trace its calls, and how often its SDK is heard in the log."""

import logging
from itertools import count

import pytest

from rolloutfleet_proxy.telemetry import tracing
from rolloutfleet_proxy.telemetry.collector import QUIET, Notes

HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "a"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        (HERE, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({**HERE, "OTEL_SDK_DISABLED": "True"}, False),
        ({**HERE, "OTEL_SDK_DISABLED": "false"}, True),
        ({**HERE, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**HERE, "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_calls_are_traced_where_a_collector_is_named_and_nothing_forbids_it(
    environment: dict[str, str], wanted: bool
) -> None:
    assert tracing.is_wanted(environment) is wanted


def test_the_log_has_one_message_of_the_sdks_in_a_while_and_how_many_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = count(step=QUIET / 10)
    notes = Notes(clock=lambda: next(seconds))
    for number in range(21):
        notes.emit(logging.LogRecord("opentelemetry.trace.span", logging.WARNING, "", 0, "a caller's header", (), None))
        notes.emit(logging.LogRecord("opentelemetry.sdk.a", logging.WARNING, "", 0, "message %d", (number,), None))
    assert [record.getMessage() for record in caplog.records] == [
        "OpenTelemetry: message 0",
        "OpenTelemetry: message 10 (9 more such messages before)",
        "OpenTelemetry: message 20 (9 more such messages before)",
    ]
