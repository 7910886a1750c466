"""What the two lines of a call cost, with its id and its figures: they are made on the event loop."""

import os
import time

import pytest
from tests.capture.printing import say

from rolloutfleet.settings import LogSettings
from rolloutfleet_proxy.figures.metrics import Metrics
from rolloutfleet_proxy.figures.phases import DONE, Phases
from rolloutfleet_proxy.ids import SESSION, Owner
from rolloutfleet_proxy.logs import events
from rolloutfleet_proxy.logs.calls import ChatCall
from rolloutfleet_proxy.logs.lines import FORMS
from rolloutfleet_proxy.logs.output import Output
from rolloutfleet_proxy.logs.requests import identified
from rolloutfleet_proxy.logs.setup import EventLog

OWNER = Owner(0, "0123456789ab")
NAME, TURN = OWNER.name(SESSION), f"turn-{'0' * 24}"
HEADERS = [
    (b"host", b"127.0.0.1:8080"),
    (b"authorization", f"Bearer {OWNER.key()}".encode()),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json"),
    (b"user-agent", b"OpenAI/Python"),
    (b"content-length", b"1234"),
]
CALLS, ROUNDS = 1000, 7
MOST = 30e-6
"""Seconds of CPU."""


def one_call(metrics: Metrics) -> None:
    _, identity = identified(HEADERS)
    told = ChatCall(metrics, request_id=identity.decode())
    told.read(session_id=NAME, messages=3, stream=False)
    phases = Phases()
    told.waits_for(TURN, phases)
    for step in range(DONE + 1):
        phases.begin(step)
    phases.stop()
    metrics.committed("first", prompt_tokens=100, completion_tokens=20, seconds=phases.seconds())
    told.status = 200
    told.answered(TURN, prompt_tokens=100, completion_tokens=20)
    told.ended()


@pytest.mark.parametrize("form", ["json", "plain"])
def test_a_calls_lines_cost_the_loop_less_than_30_microseconds(form: str, request: pytest.FixtureRequest) -> None:
    settings = LogSettings.model_validate({"format": form})
    output = Output(os.open(os.devnull, os.O_WRONLY))
    events.direct(EventLog(FORMS[settings.format](pid=1, ordinal=0), output, level=20))
    metrics, took = Metrics(), []
    try:
        for _ in range(ROUNDS):
            began = time.thread_time()
            for _ in range(CALLS):
                one_call(metrics)
            took.append((time.thread_time() - began) / CALLS)
            output.flush()
    finally:
        events.direct(None)
        output.close()
    say(request, f"{1e6 * min(took):.1f} µs of CPU a call, as {form}")
    assert output.dropped == 0
    assert min(took) < MOST
