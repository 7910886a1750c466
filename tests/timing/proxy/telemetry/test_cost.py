"""What the two lines of a call cost, with its id, and what its figures cost: both are made on the event loop.

How fast the machine is at this moment is no concern of the test: the same number of lines by the standard library's
`logging` is the measure, in the same rounds.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from tests.printing import say

from rolloutfleet.settings import LogSettings
from rolloutfleet_proxy.domain.turn import Extras
from rolloutfleet_proxy.ids import SESSION, Owner
from rolloutfleet_proxy.telemetry import events
from rolloutfleet_proxy.telemetry.calls import CallFactory, ChatCall
from rolloutfleet_proxy.telemetry.log_lines import FORMS
from rolloutfleet_proxy.telemetry.log_setup import EventLog
from rolloutfleet_proxy.telemetry.metrics import Metrics
from rolloutfleet_proxy.telemetry.phases import DONE, Phases
from rolloutfleet_proxy.telemetry.request_ids import identified
from rolloutfleet_proxy.telemetry.spans import Spans

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
STEPS_TOOK = [0.0001, 0.002, 0.0, 1.5, 0.0007, 0.001]
CALLS, ROUNDS = 500, 14
MOST = 1.25
"""Times what `logging` costs for two lines of as many fields, without ids, phases and metrics."""
MOST_OF_FIGURES = 1.0
"""The same of a committed turn's metrics, which are prometheus_client's."""
MOST_UNSAMPLED = 3.0
"""Times what a call's lines cost alone, with a span that the sampler does not take."""
ASKED: Any = SimpleNamespace(messages=[1, 2, 3], model="m", stream=False, sampling={"temperature": 1.0}, max_tokens=20)
MADE: Any = SimpleNamespace(
    name=TURN, prompt_tokens=100, output_ids=range(20), finish_reason="stop", versions=[(1, 20)], extras=Extras()
)
TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
BEGAN = {
    "pid": 1,
    "ordinal": 0,
    "session_id": NAME,
    "request_id": "0" * 32,
    "messages": 3,
    "stream": False,
    "in_flight": 1,
}
ENDED = BEGAN | {
    **dict.fromkeys(("lock_ms", "tokenize_in_ms", "engine_ms", "tokenize_out_ms", "commit_ms", "total_ms"), 1.234567),
    "turn_id": TURN,
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "status": 200,
    "error": None,
}


class AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = record.args if isinstance(record.args, dict) else {}
        return json.dumps({"ts": record.created, "level": record.levelname, "event": record.msg, **fields})


@pytest.fixture
def standard() -> Iterator[logging.Logger]:
    """A logger of the standard library that writes lines of JSON to nowhere."""
    with Path(os.devnull).open("w") as nowhere:
        handler = logging.StreamHandler(nowhere)
        handler.setFormatter(AsJson())
        logger = logging.Logger("standard", level=logging.INFO)
        logger.addHandler(handler)
        yield logger


def cpu_of(calls: Callable[[], None]) -> float:
    """Seconds of this thread's CPU for `CALLS` of them."""
    began = time.thread_time()
    for _ in range(CALLS):
        calls()
    return time.thread_time() - began


def two_lines(logger: logging.Logger) -> None:
    logger.info("call_began", BEGAN)
    logger.info("call_ended", ENDED)


def one_call(metrics: Metrics, tells: CallFactory = ChatCall) -> None:
    _, identity = identified(HEADERS)
    told = tells(metrics, request_id=identity.decode(), headers=TRACED, api="openai_chat", session_id="")
    told.read(NAME, ASKED)
    phases = Phases()
    told.waits_for(TURN, phases)
    for step in range(DONE + 1):
        phases.begin(step)
    phases.stop()
    told.status = 200
    told.answered(MADE)
    told.ended()


def one_turn(metrics: Metrics) -> None:
    metrics.committed("first", prompt_tokens=100, completion_tokens=20, seconds=STEPS_TOOK)


@pytest.mark.parametrize("form", ["json", "plain"])
def test_a_calls_lines_cost_the_loop_little(
    form: str, standard: logging.Logger, request: pytest.FixtureRequest
) -> None:
    settings = LogSettings.model_validate({"format": form})
    output = EventLog(FORMS[settings.format](pid=1, ordinal=0), logging.INFO, os.open(os.devnull, os.O_WRONLY))
    events.direct(output)
    metrics, took, standards = Metrics(), [], []
    try:
        for _ in range(ROUNDS):
            took.append(cpu_of(partial(one_call, metrics)))
            standards.append(cpu_of(partial(two_lines, standard)))
            output.flush()
    finally:
        events.direct(None)
        output.close()
    ratio = min(took) / min(standards)
    say(request, f"{1e6 * min(took) / CALLS:.1f} µs of CPU a call, as {form}: {ratio:.2f} of what logging takes")
    assert output.dropped == 0
    assert ratio < MOST


def test_a_turns_figures_cost_the_loop_little(standard: logging.Logger, request: pytest.FixtureRequest) -> None:
    metrics, took, standards = Metrics(), [], []
    for _ in range(ROUNDS):
        took.append(cpu_of(partial(one_turn, metrics)))
        standards.append(cpu_of(partial(two_lines, standard)))
    ratio = min(took) / min(standards)
    say(request, f"{1e6 * min(took) / CALLS:.1f} µs of CPU a turn's figures: {ratio:.2f} of what logging takes")
    assert ratio < MOST_OF_FIGURES


def spans(sampler: Sampler) -> Spans:
    """They go nowhere."""
    tracer = TracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer("test")
    nowhere: Any = None
    return Spans(tracer, nowhere, "m", {"gen_ai.operation.name": "chat"})


def test_a_span_that_is_not_sampled_costs_the_loop_little(request: pytest.FixtureRequest) -> None:
    output = EventLog(FORMS["json"](pid=1, ordinal=0), logging.INFO, os.open(os.devnull, os.O_WRONLY))
    events.direct(output)
    metrics = Metrics()
    kinds: dict[str, CallFactory] = {
        "no": ChatCall,
        "unsampled": spans(ALWAYS_OFF).call,
        "sampled": spans(ALWAYS_ON).call,
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    try:
        for _ in range(ROUNDS):
            for name, tells in kinds.items():
                took[name].append(cpu_of(partial(one_call, metrics, tells)))
                output.flush()
    finally:
        events.direct(None)
        output.close()
    figures = {name: 1e6 * min(each) / CALLS for name, each in took.items()}
    say(request, ", ".join(f"{figure:.1f} µs of CPU a call with {name} span" for name, figure in figures.items()))
    assert figures["unsampled"] < MOST_UNSAMPLED * figures["no"]
