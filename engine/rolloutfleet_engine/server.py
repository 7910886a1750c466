"""The engine as an ASGI application, and as a server."""

import asyncio
import contextlib
import secrets
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence

import uvicorn

from rolloutfleet.http_serving import BoundedProtocol, BoundedServer
from rolloutfleet_engine import control
from rolloutfleet_engine.chat import chat
from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.exchange import Exchange, Message, Receive, Send, TooLarge, Unreadable, error_response
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.generate import generate
from rolloutfleet_engine.options import EngineOptions

Route = Callable[[Engine, Exchange], Awaitable[None]]

ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/generate"): generate,
    ("PUT", "/generate"): generate,
    ("POST", "/v1/chat/completions"): chat,
    ("POST", "/abort_request"): control.abort_request,
    ("POST", "/pause_generation"): control.pause_generation,
    ("POST", "/continue_generation"): control.continue_generation,
    ("POST", "/update_weight_version"): control.update_weight_version,
    ("POST", "/update_weights_from_disk"): control.update_weights_from_disk,
    ("GET", "/flush_cache"): control.flush_cache,
    ("POST", "/flush_cache"): control.flush_cache,
    ("GET", "/health"): control.health,
    ("GET", "/ready"): control.ready,
    ("GET", "/health_generate"): control.health,
    ("GET", "/model_info"): control.model_info,
    ("GET", "/get_model_info"): control.model_info,
    ("GET", "/server_info"): control.server_info,
    ("GET", "/get_server_info"): control.server_info,
    ("GET", "/v1/models"): control.models,
    ("GET", "/v1/loads"): control.loads,
    ("GET", "/faults"): control.show_faults,
    ("POST", "/faults"): control.add_faults,
    ("DELETE", "/faults"): control.clear_faults,
    ("GET", "/counters"): control.counters,
    ("GET", "/log"): control.log,
}
PATHS = frozenset(path for _, path in ROUTES)
WITHOUT_KEY = ("/health", "/ready")
"""How the paths begin that take no key, as SGLang has it: probes have none."""


class App:
    """The ASGI application of one engine."""

    def __init__(self, options: EngineOptions, *, faults: Sequence[Fault] = ()) -> None:
        # The clock is the running loop's, and there is none yet.
        self.engine = Engine(options, clock=lambda: asyncio.get_running_loop().time(), faults=faults)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        route = ROUTES.get((exchange.method, exchange.path))
        try:
            if not self._may(exchange):
                await exchange.answer({"error": "Unauthorized"}, 401)
            elif route is not None:
                await route(self.engine, exchange)
            else:
                status, detail = (405, "Method Not Allowed") if exchange.path in PATHS else (404, "Not Found")
                await exchange.answer({"detail": detail}, status)
        except Unreadable as error:
            await exchange.answer(error_response(f"1 validation error:\n  {error}", 400, kind="Bad Request"), 400)
        except TooLarge as error:
            await exchange.answer(error_response(str(error), 413), 413)
        except ConnectionError:
            return

    def _may(self, exchange: Exchange) -> bool:
        key = self.engine.options.api_key
        if key is None or exchange.path.startswith(WITHOUT_KEY):
            return True
        scheme, _, given = (exchange.header(b"authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(given.encode(), key.encode())


def create_engine(options: EngineOptions | None = None, *, faults: Sequence[Fault] = ()) -> App:
    """The ASGI application of a simulated engine.

    Raises `FileNotFoundError` where the model path has no tokenizer.
    """
    return App(options or EngineOptions(), faults=faults)


class Server(BoundedServer):
    """uvicorn's server; it says its port when it listens."""

    def __init__(self, app: App, *, host: str, port: int, ready: Callable[[int], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="uvloop",
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                # Deliberate cuts end a route before its answer is complete, which uvicorn logs as an error.
                log_level="critical",
                access_log=False,
                backlog=4096,
                timeout_keep_alive=120,
                timeout_graceful_shutdown=1,
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready(self.servers[0].sockets[0].getsockname()[1])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own sends the signal once more in the end: a server that stopped as it was told would have failed.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.handle_exit, number, None)
        yield
