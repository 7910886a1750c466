"""With a collector named, each call has one span by the conventions for generative AI, in its caller's trace, and
nothing that was said is in it. Without one, nothing that traces is even imported."""

import asyncio
import itertools
import json
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fleets import MODEL, AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.calls import leave_early
from tests.integration.proxy.collector import OtlpReceiver, receiving
from tests.integration.proxy.in_process import proxy_in_process
from tests.processes import free_port
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES
from tests.waiting import PATIENCE

from rolloutfleet_proxy.dialects.base import Dialect

CLIENT = 3
"""The kind of a span, as OTLP has it."""
SAID, SYSTEM, TOOL = "what-the-user-said", "what-the-system-prompt-says", "a-tool-of-the-agent"
STOP = "a-stop-string"
SAMPLING: dict[str, Any] = {"temperature": 0.75, "top_p": 0.875, "top_k": 17}
PATHS = {CHAT.name: "chat/completions", MESSAGES.name: "messages", RESPONSES.name: "responses"}
ALONE: dict[str, Any] = {"replicas": 1}

numbers = itertools.count()


def body_in(dialect: Dialect[Any], *, stream: bool) -> dict[str, Any]:
    """A request with something in every place that could be told of."""
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}}
    user = {"role": "user", "content": SAID}
    match dialect.name:
        case CHAT.name:
            asked: dict[str, Any] = {
                "messages": [{"role": "system", "content": SYSTEM}, user],
                "tools": [{"type": "function", "function": {"name": TOOL, "parameters": parameters}}],
                "max_tokens": 30,
                "stop": [STOP],
            }
        case MESSAGES.name:
            asked = {
                "system": SYSTEM,
                "messages": [user],
                "tools": [{"name": TOOL, "input_schema": parameters}],
                "max_tokens": 30,
                "stop_sequences": [STOP],
            }
        case _:
            asked = {
                "instructions": SYSTEM,
                "input": SAID,
                "tools": [{"type": "function", "name": TOOL, "parameters": parameters}],
                "max_output_tokens": 30,
            }
    return {**asked, **SAMPLING, "model": MODEL, "stream": stream}


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpReceiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: OtlpReceiver) -> Iterator[Fleet]:
    """Two proxies: the first is traced, the other says what it imports."""
    folder = tmp_path_factory.mktemp("traced")
    options = ("--token-latency", "0.002")
    settings = {"sessions": {"retryGrace": "2s"}}
    with running_fleet(folder, proxies=2, engine_options=options, settings=settings, start_proxies=False) as fleet:
        fleet.proxies[0].environment.update(named(collector.url))
        fleet.proxies[1].environment["PYTHONPROFILEIMPORTTIME"] = "1"
        for proxy in fleet.proxies:
            proxy.launch()
        fleet.wait_until_complete()
        yield fleet


def named(url: str, **more: str) -> dict[str, str]:
    """An environment that names a collector."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50", "NO_PROXY": "127.0.0.1", **more}


def fresh(proxy: ProxyProcess) -> AgentSession:
    return proxy.start_session(here=True, task_id=f"trace-{next(numbers)}")


def request_id() -> str:
    return f"traced-{secrets.token_hex(6)}"


def traceparent(*, flags: str = "01") -> tuple[str, str, str]:
    """A caller's, with its trace and its span."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return f"00-{trace}-{span}-{flags}", trace, span


def ask(session: AgentSession, dialect: Dialect[Any], body: dict[str, Any], **headers: str) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{session.base_url}/{PATHS[dialect.name]}",
        content=json.dumps(body),
        headers={"authorization": f"Bearer {session.api_key}", "content-type": "application/json", **given},
        timeout=PATIENCE,
    )


def sent_to_engine(fleet: Fleet, request: str) -> dict[str, str]:
    """Headers about traces of the one generation of a request."""
    [made] = [entry for entry in fleet.engine.log() if entry["traces"].get("x-request-id") == request]
    traces: dict[str, str] = made["traces"]
    return traces


def answered(session: AgentSession) -> str:
    """All that the model said in the session's last turn."""
    with session.proxy.admin() as admin:
        shown = admin.get(f"/sessions/{session.session_id}/conversation").raise_for_status().json()
    message = shown["turns"][-1]["messages"][-1]["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    said = [message.get("content"), message.get("reasoning_content"), *calls]
    assert any(said)
    return " ".join(filter(None, said))


def assert_silent(collector: OtlpReceiver, session: AgentSession, answer: str = "") -> None:
    """Nothing that was said, and no key, is anywhere in what the collector was sent."""
    everything = b"".join(collector.bodies)
    for text in (SAID, SYSTEM, TOOL, STOP, session.api_key):
        assert text.encode() not in everything
    for words in re.findall(r"[^\W\d_]{3,} [^\W\d_]{3,}", answer):
        assert words.encode() not in everything, f"{words} of the answer"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
def test_a_call_has_one_span_in_its_callers_trace(
    traced: Fleet, collector: OtlpReceiver, dialect: Dialect[Any], stream: bool
) -> None:
    session, request = fresh(traced.proxy), request_id()
    header, trace, caller = traceparent()
    before = time.time_ns()
    reply = ask(session, dialect, body_in(dialect, stream=stream), x_request_id=request, traceparent=header)
    assert reply.status_code == 200
    [span] = collector.of_request(request)
    [turn] = session.turns()
    assert (span.name, span.kind, span.failed) == (f"chat {MODEL}", CLIENT, False)
    assert (span.trace, span.parent) == (trace, caller)
    assert before <= span.began < span.ended <= time.time_ns()
    said = span.says
    assert said.pop("rolloutfleet.call_id") and said.pop("server.address") == "127.0.0.1" and said.pop("server.port")
    assert said.pop("gen_ai.usage.cache_read.input_tokens", 0) >= 0
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sglang",
        "gen_ai.conversation.id": session.session_id,
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 30,
        "gen_ai.request.stream": stream,
        **{f"gen_ai.request.{name}": value for name, value in SAMPLING.items()},
        "gen_ai.response.id": turn["turn_id"],
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": [turn["finish_reason"]],
        "gen_ai.usage.input_tokens": turn["prompt_tokens"],
        "gen_ai.usage.output_tokens": turn["completion_tokens"],
        "http.response.status_code": 200,
        "rolloutfleet.api": dialect.name,
        "rolloutfleet.outcome": "committed",
        "rolloutfleet.request_id": request,
        "rolloutfleet.turn_id": turn["turn_id"],
        "rolloutfleet.weight_versions": [1],
    }
    assert_silent(collector, session, answered(session))


def test_a_request_without_a_model_is_one_to_the_fleets(traced: Fleet, collector: OtlpReceiver) -> None:
    request = request_id()
    asked = {name: value for name, value in body_in(CHAT, stream=False).items() if name != "model"}
    assert fresh(traced.proxy).raw_chat(asked, x_request_id=request).is_success
    [span] = collector.of_request(request)
    assert (span.name, span.says["gen_ai.request.model"]) == (f"chat {MODEL}", MODEL)


def test_its_steps_are_spans_below_it_and_so_are_the_engines(traced: Fleet, collector: OtlpReceiver) -> None:
    session, request = fresh(traced.proxy), request_id()
    header, trace, _ = traceparent()
    assert ask(session, CHAT, body_in(CHAT, stream=False), x_request_id=request, traceparent=header).is_success
    [span] = collector.of_request(request)
    [engine] = collector.wait(lambda each: each.parent == span.id and each.name == "engine")
    assert (engine.trace, engine.says) == (trace, {})
    assert span.began <= engine.began < engine.ended <= span.ended
    assert sent_to_engine(traced, request)["traceparent"][:-2] == f"00-{trace}-{span.id}-"


def test_what_the_spans_are_of_is_told_once_for_all(traced: Fleet, collector: OtlpReceiver) -> None:
    request = request_id()
    assert fresh(traced.proxy).raw_chat(body_in(CHAT, stream=False), x_request_id=request).is_success
    [span] = collector.of_request(request)
    of = {name: value for name, value in span.of.items() if name.startswith(("service.", "rolloutfleet."))}
    assert of.pop("service.version")
    assert of == {
        "service.name": "rolloutfleet-proxy",
        "service.instance.id": "test-0",
        "rolloutfleet.fleet": "test",
        "rolloutfleet.ordinal": 0,
    }
    assert set(collector.paths) == {"/v1/traces"}


@pytest.mark.parametrize(
    "header", ["nonsense", f"00-{'0' * 32}-{'1' * 16}-01", f"ff-{'1' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'1' * 16}"]
)
def test_a_traceparent_that_is_malformed_is_ignored(traced: Fleet, collector: OtlpReceiver, header: str) -> None:
    request = request_id()
    reply = fresh(traced.proxy).raw_chat(
        body_in(CHAT, stream=False), x_request_id=request, traceparent=header, tracestate="theirs=1"
    )
    assert reply.status_code == 200
    [span] = collector.of_request(request)
    assert span.parent == "" and span.trace not in header
    sent = sent_to_engine(traced, request)
    assert sent["traceparent"][:-2] == f"00-{span.trace}-{span.id}-" and not sent.get("tracestate")


def test_what_the_caller_does_not_sample_has_no_span(traced: Fleet, collector: OtlpReceiver) -> None:
    session, unsampled, sampled = fresh(traced.proxy), request_id(), request_id()
    header, trace, _ = traceparent(flags="00")
    asked = body_in(CHAT, stream=False)
    reply = session.raw_chat(asked, x_request_id=unsampled, traceparent=header, tracestate="theirs=1")
    assert reply.status_code == 200
    assert session.raw_chat(asked, x_request_id=sampled).status_code == 200
    collector.of_request(sampled)
    assert not [span for span in collector.spans() if span.trace == trace]
    sent = sent_to_engine(traced, unsampled)
    assert sent["traceparent"].startswith(f"00-{trace}-") and sent["traceparent"].endswith(("-00", "-02"))
    assert sent["tracestate"] == "theirs=1"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_that_fails_has_a_span_that_says_how(traced: Fleet, collector: OtlpReceiver, stream: bool) -> None:
    session, request = fresh(traced.proxy), request_id()
    # So long that its end is not made yet when the stream is cut, however busy the machine is.
    asked = {**body_in(CHAT, stream=stream), "max_tokens": 1500, "ignore_eos": True, "tools": []}
    fault = {"kind": "abort_with_status", "after_tokens": 10} if stream else {"kind": "error_500", "message": SAID}
    traced.engine.fault(**fault)
    try:
        answer = ask(session, CHAT, asked, x_request_id=request)
    finally:
        traced.engine.clear_faults()
    [span] = collector.of_request(request)
    assert span.failed and span.name == f"chat {MODEL}"
    assert span.says["error.type"] == span.says["rolloutfleet.outcome"] == "engine_error"
    # A stream has none before its first text, and what fails with that is an error like any other.
    assert span.says["http.response.status_code"] == answer.status_code
    assert answer.status_code in ((200, 502) if stream else (502,))
    assert "gen_ai.response.id" not in span.says and "gen_ai.usage.output_tokens" not in span.says
    assert span.says["gen_ai.conversation.id"] == session.session_id
    assert_silent(collector, session)


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [(SAID.encode(), 400, "invalid_json"), (json.dumps({"messages": SAID}).encode(), 400, "invalid_request")],
)
def test_a_request_that_can_not_be_read_has_a_span_without_a_model(
    traced: Fleet, collector: OtlpReceiver, content: bytes, status: int, code: str
) -> None:
    session, request = fresh(traced.proxy), request_id()
    assert session.raw_chat(content, x_request_id=request).status_code == status
    [span] = collector.of_request(request)
    assert (span.name, span.failed, span.says["error.type"]) == ("chat", True, code)
    assert_silent(collector, session)


async def test_a_caller_that_leaves_has_a_span_that_says_so(traced: Fleet, collector: OtlpReceiver) -> None:
    session, request = fresh(traced.proxy), request_id()
    long = {**body_in(CHAT, stream=False), "max_tokens": 1500, "ignore_eos": True, "tools": []}
    await leave_early(traced, session, long, **{"x-request-id": request})
    [span] = await asyncio.to_thread(collector.of_request, request)
    assert span.failed and span.says["error.type"] == "client_gone"
    assert "http.response.status_code" not in span.says


def test_a_retry_has_a_span_that_says_it_made_nothing(traced: Fleet, collector: OtlpReceiver) -> None:
    session, request = fresh(traced.proxy), request_id()
    asked = body_in(CHAT, stream=False)
    for _ in range(2):
        assert session.raw_chat(asked, x_request_id=request, idempotency_key="a-key").status_code == 200
    first, again = sorted(collector.of_request(request, count=2), key=lambda span: span.began)
    assert [span.says["rolloutfleet.outcome"] for span in (first, again)] == ["committed", "replayed"]
    assert first.says["gen_ai.response.id"] == again.says["gen_ai.response.id"]
    collector.wait(lambda span: span.parent == first.id and span.name == "engine")
    assert not [span for span in collector.spans() if span.parent == again.id]


async def test_a_retry_that_joins_has_a_span_that_says_so(traced: Fleet, collector: OtlpReceiver) -> None:
    session, request = fresh(traced.proxy), request_id()
    asked = {**body_in(CHAT, stream=False), "max_tokens": 1000, "ignore_eos": True, "tools": []}
    replies = await asyncio.gather(
        *(asyncio.to_thread(session.raw_chat, asked, x_request_id=request, idempotency_key="k") for _ in range(2))
    )
    assert [reply.status_code for reply in replies] == [200, 200]
    spans = await asyncio.to_thread(lambda: collector.of_request(request, count=2))
    assert sorted(span.says["rolloutfleet.outcome"] for span in spans) == ["committed", "joined"]
    [joined] = [span for span in spans if span.says["rolloutfleet.outcome"] == "joined"]
    assert not [span for span in collector.spans() if span.parent == joined.id]


def test_a_call_that_is_passed_on_has_its_span_from_its_owner(traced: Fleet, collector: OtlpReceiver) -> None:
    owner, other = traced.proxies
    session, request = fresh(owner), request_id()
    header, trace, caller = traceparent()
    elsewhere = AgentSession(
        other, session.session_id, session.api_key, f"{other.url}/sessions/{session.session_id}/v1"
    )
    assert ask(elsewhere, CHAT, body_in(CHAT, stream=True), x_request_id=request, traceparent=header).is_success
    [span] = collector.of_request(request)
    assert (span.trace, span.parent, span.says["rolloutfleet.outcome"]) == (trace, caller, "committed")


def test_without_a_collector_nothing_that_traces_is_imported(traced: Fleet) -> None:
    untraced = traced.proxies[1]
    session, request = fresh(untraced), request_id()
    header, trace, caller = traceparent()
    assert ask(session, CHAT, body_in(CHAT, stream=False), x_request_id=request, traceparent=header).is_success
    assert sent_to_engine(traced, request)["traceparent"] == f"00-{trace}-{caller}-01", "as it came"
    said = untraced.log.read_text().splitlines()
    imported = {line.rsplit("|", 1)[1].strip() for line in said if line.startswith("import time")}
    assert "rolloutfleet_proxy.telemetry.tracing" in imported, "the worker's imports are told"
    ours = {f"rolloutfleet_proxy.telemetry.{name}" for name in ("spans", "collector")}
    # What FastAPI imports of OpenTelemetry by itself is its API, which does nothing.
    sdk = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "google", "requests")
    assert not {name for name in imported if name in ours or name.startswith(sdk)}


# With environments of their own


async def one_call(fleet: Fleet, folder: Path) -> str:
    """A call to a proxy with this process' environment, which then ends; the session."""
    async with proxy_in_process(fleet, folder, **ALONE) as (_, admin):
        started = (await admin.post("/sessions", json={})).json()
        reply = await admin.post(
            f"/sessions/{started['session_id']}/v1/chat/completions",
            json=body_in(CHAT, stream=False),
            headers={"authorization": f"Bearer {started['api_key']}"},
        )
        assert reply.status_code == 200, reply.text
    session: str = started["session_id"]
    return session


async def test_the_last_spans_are_sent_as_the_proxy_ends(
    traced: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        late = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
        users = {"OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"}
        use(monkeypatch, named(receiver.url) | late | users)
        session = await one_call(traced, tmp_path)
        [span] = await asyncio.to_thread(receiver.wait, lambda each: each.name == f"chat {MODEL}")
        assert span.says["gen_ai.conversation.id"] == session
        assert span.of["service.name"] == "mine" and span.of["rolloutfleet.fleet"] == "test"
        assert {head["a"] for head in receiver.heads} == {"b"}


async def test_a_sampler_that_takes_nothing_sends_nothing(
    traced: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        use(monkeypatch, named(receiver.url, OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0"))
        await one_call(traced, tmp_path)
        assert receiver.bodies == []


@pytest.mark.parametrize("kind", ["gone", "silent"])
def test_a_dead_collector_keeps_nobody_waiting_and_is_told_of_once(traced: Fleet, tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if kind == "silent" else free_port()
        # Longer than the SDK itself takes at the most to end.
        proxy = beside(traced, tmp_path, named(f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_TIMEOUT="600"))
        try:
            proxy.start()
            assert fresh(proxy).raw_chat(body_in(CHAT, stream=False)).is_success
            assert proxy.process is not None
            proxy.process.terminate()
            assert proxy.process.wait(PATIENCE) == 0
        finally:
            proxy.stop()
    assert proxy.log.read_text().count("OpenTelemetry") <= 1


def beside(fleet: Fleet, folder: Path, environment: dict[str, str]) -> ProxyProcess:
    """A proxy with the gateway of a fleet, but alone; it does not run yet."""
    port = free_port()
    (folder / "admin.key").write_text(f"{fleet.proxy.key}\n")
    own = {"replicas": 1, "port": port, "peers": {"ports": [port]}, "state_dir": str(folder / "proxy" / "state")}
    return ProxyProcess(0, port, folder / "proxy", fleet.proxy.settings | own, environment)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "the SDK refuses its environment variables"),
    ],
)
async def test_variables_that_can_not_be_used_are_said_and_the_proxy_serves(
    traced: Fleet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    says: str,
) -> None:
    use(monkeypatch, named("http://127.0.0.1:9", **variables))
    await one_call(traced, tmp_path)
    [told] = [record.getMessage() for record in caplog.records if "not traced" in record.getMessage()]
    assert says in told


def use(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
