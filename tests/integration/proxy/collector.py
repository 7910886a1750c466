"""A collector of spans on loopback: takes what comes over OTLP's HTTP, and keeps it, parsed and as it came."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    trace: str
    id: str
    parent: str
    """Empty: it has none."""
    kind: int
    failed: bool
    says: dict[str, Any]
    of: dict[str, Any]
    """What the resource says."""
    began: int
    ended: int


@dataclass
class OtlpReceiver:
    """Answers 200, and `wait`s for spans."""

    url: str
    bodies: list[bytes] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def spans(self) -> list[Received]:
        return [span for body in list(self.bodies) for span in parsed(body)]

    def wait(self, chosen: Callable[[Received], bool], *, count: int = 1) -> list[Received]:
        """So many spans that are chosen, as soon as they have come."""

        def found() -> list[Received]:
            return [span for span in self.spans() if chosen(span)]

        with self.arrived:
            came = self.arrived.wait_for(lambda: len(found()) >= count, PATIENCE)
            assert came, f"{len(found())} of {count} came: {self.spans()}"
            it = found()
        assert len(it) == count, it
        return it

    def of_request(self, request_id: str, *, count: int = 1) -> list[Received]:
        return self.wait(lambda span: span.says.get("rolloutfleet.request_id") == request_id, count=count)


def parsed(body: bytes) -> Iterator[Received]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    kind=span.kind,
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                    says=_said(span.attributes),
                    of=_said(resource.resource.attributes),
                    began=span.start_time_unix_nano,
                    ended=span.end_time_unix_nano,
                )


def _said(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {each.key: _value(each.value) for each in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextlib.contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with receiver.arrived:
                receiver.bodies.append(body)
                receiver.heads.append(dict(self.headers.items()))
                receiver.paths.append(self.path)
                receiver.arrived.notify_all()
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
