"""The routes of exports over a real store, and an export that is large."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import numpy as np
from fastapi import FastAPI, Request, Response
from tests.unit.proxy.services import in_force, session_service
from tests.unit.proxy.stores import new_turn

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.cluster.ownership import Ownership
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.control import exports
from rolloutfleet_proxy.control import sessions as sessions_api
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.weights import Versions, WeightState
from rolloutfleet_proxy.engine.pause_gate import PauseGate
from rolloutfleet_proxy.http.errors import body_of, status_of
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.lifecycle.adopted import Adopted
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.exports import ExportService
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.sessions.auth import AdminKeys
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import commit_turn
from rolloutfleet_proxy.telemetry.metrics import Metrics

ADMIN = "admin-key-0123456789"


async def served(folder: Path) -> SimpleNamespace:
    store = Store.over(open_database(folder))
    sessions = SessionRegistry(store.reader, cache_bytes=1_000_000)
    service = session_service(store, sessions)
    proxy = SimpleNamespace(
        store=store,
        owner=store.owner,
        reader=store.reader,
        writer=store.writer,
        sessions=sessions,
    )

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, DomainError)
        return Response(body_of(error), status_code=status_of(error), media_type="application/json")

    app = FastAPI()
    access = Access(admin=AdminKeys([ADMIN]), registry=sessions, seals=Seals())
    own, live = store.owner, in_force(store.database)
    app.state.services = SimpleNamespace(
        access=access,
        sessions=service,
        exports=ExportService(
            store=store,
            shards=await Shards.open(folder / "shards", store),
            sessions=service,
            gate=PauseGate(WeightState(versions=Versions(run=2, version=7)), max_hold=1.0),
            settings=live,
            metrics=Metrics(),
        ),
        ordinals=[own.ordinal],
        ownership=Ownership(own=own, peers=Peers(live.current), adopted=Adopted(store.reader, own), ephemeral=False),
    )
    app.include_router(exports.router)
    app.include_router(sessions_api.router)
    app.add_exception_handler(DomainError, answer)
    proxy.app = app
    proxy.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://proxy",
        headers={"Authorization": f"Bearer {ADMIN}"},
    )
    return proxy


async def whole_export(app: FastAPI, media: str, took: Callable[[int], None]) -> None:
    """Ask for all that there is, and tell the size of each piece that comes."""
    body = b'{"max_trajectories":64}'
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])
    over = asyncio.Event()

    async def receive() -> Any:
        return next(messages, None) or await over.wait()

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200
        took(len(message.get("body", b"")))

    headers = {"authorization": f"Bearer {ADMIN}", "accept": media, "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/export",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)
    over.set()


def large_sessions(transaction: Transaction, owner: Owner, *, sessions: int) -> None:
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 150_000, (6, 5000)).tolist()
    logprobs = generator.normal(-2, 1, (6, 2000)).tolist()
    _, started = start(transaction, owner, StartSessions(group_size=sessions))
    for session in started:
        row = transaction.rows("SELECT id FROM sessions WHERE name = ?", (session.name,))[0][0]
        for number in range(6):
            made = new_turn(
                row,
                name=f"turn-{row}-{number}",
                parent=number or None,
                tokens=5000 * number,
                prompt=ids[number][:3000],
                output=ids[number][3000:],
                logprobs=logprobs[number],
            )
            commit_turn(
                transaction, msgspec.structs.replace(made, output={"role": "assistant", "content": "word " * 2000})
            )
        close_session(transaction, row)
