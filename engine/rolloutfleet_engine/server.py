"""The engine as an ASGI application, and as a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvicorn

from rolloutfleet_engine import control
from rolloutfleet_engine.chat import chat
from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.exchange import Exchange, Message, Receive, Send
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


class App:
    """The ASGI application of one engine; `engine` is there once the first request has come."""

    def __init__(self, options: EngineOptions, *, faults: list[Fault] | None = None) -> None:
        # The clock is the loop's, and there is no loop yet.
        self.engine = Engine(options, clock=lambda: asyncio.get_running_loop().time(), faults=faults)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        route = ROUTES.get((exchange.method, exchange.path))
        try:
            if route is not None:
                await route(self.engine, exchange)
            else:
                status, detail = (405, "Method Not Allowed") if exchange.path in PATHS else (404, "Not Found")
                await exchange.answer({"detail": detail}, status)
        except ConnectionError:
            return


def create_engine(options: EngineOptions | None = None, *, faults: list[Fault] | None = None) -> App:
    """The ASGI application of a simulated engine.

    Raises `FileNotFoundError` where the model path has no tokenizer.
    """
    return App(options or EngineOptions(), faults=faults)


def create_server(app: App, *, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    # Deliberate cuts end a route before its answer is complete, which uvicorn logs as an error of the application.
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=1,
        backlog=4096,
        timeout_keep_alive=120,
    )
    return uvicorn.Server(config)
