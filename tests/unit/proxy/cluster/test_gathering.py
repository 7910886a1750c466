"""A session's tensors brought together from the whole fleet, and what is said of those that can't be had."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Response
from tests.unit.proxy.cluster.served import served, settings_of
from tests.unit.proxy.shards.shelf import form_of_all
from tests.unit.proxy.shards.shelf import safetensors as one_tensor

from rolloutfleet.tensors import RemoteTensor, remote_tensors
from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.cluster import gathering
from rolloutfleet_proxy.cluster.gathering import Gatherer
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.control import shards as shards_api
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.errors import body_of, status_of
from rolloutfleet_proxy.ids import TENSOR, Owner
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.sessions.auth import AdminKeys
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.store import Reader, Store
from rolloutfleet_proxy.store.writer import Writer

KEY = "an-admin-key-for-tests-alone"
FORM, DATA = form_of_all("bfloat16", 5, 3)
BODY = one_tensor(FORM, DATA)
AWAY, ELSEWHERE = 2, "http://127.0.0.1:9"
PORTS = [7000, 7001, 7002]


@dataclass
class Fleet:
    """Proxy 0, which gathers; proxy 1 behind a real server; proxy 2, which does not answer."""

    folder: Path
    here: Shards
    there: Shards
    writer: Writer
    owners: list[Owner]
    peers: Peers
    gatherer: Gatherer

    def reference(self, name: str, ordinal: int) -> RemoteTensor:
        return RemoteTensor(name, self.peers.address(ordinal), FORM.shape, FORM.dtype)


async def opened(stack: AsyncExitStack, folder: Path) -> tuple[Writer, Reader, Shards, str]:
    database = open_database(folder / "store")
    stack.callback(database.close)
    store = Store.over(database)
    stack.push_async_callback(store.close)
    shards = await Shards.open(folder / "shards", store)
    stack.callback(shards.close)
    return store.writer, store.reader, shards, database.store_id


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        writer, reader, here, store_id = await opened(stack, tmp_path / "0")
        _, _, there, other_id = await opened(stack, tmp_path / "1")
        peers = Peers(settings_of(0, PORTS, replicas=3))
        app = FastAPI()
        app.include_router(shards_api.router)
        app.add_exception_handler(DomainError, lambda _, error: Response(body_of(error), status_of(error)))
        none = SessionRegistry(reader, cache_bytes=0)
        access = Access(admin=AdminKeys([KEY]), registry=none, seals=Seals())
        app.state.services = SimpleNamespace(access=access, shards=SimpleNamespace(shelf=there))
        stack.push_async_callback((await served(app, PORTS[1])).stop)
        stack.push_async_callback(peers.close)
        owners = [Owner(0, store_id), Owner(1, other_id), Owner(AWAY, "0" * 12)]
        gatherer = Gatherer(here, reader, peers, owners[0], admin_key=lambda: KEY, limit=1000)
        yield Fleet(tmp_path, here, there, writer, owners, peers, gatherer)


async def put(shards: Shards, name: str, body: bytes = BODY, **owner: Any) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield body

    await shards.put(name, pieces(), **owner)


async def test_tensors_come_from_wherever_they_are(fleet: Fleet) -> None:
    new = StartSessions()
    _, [session] = await fleet.writer.run(lambda transaction: start(transaction, fleet.owners[0], new))
    its = fleet.owners[1].derived(TENSOR, "an export's")
    await put(fleet.here, "tied", session=session.name)
    await put(fleet.here, "own", ttl=100)
    await put(fleet.there, "other", ttl=100)
    await put(fleet.there, its, ttl=100)
    metadata = {
        "deep": [{"image": fleet.reference("own", 0).as_json()}, [fleet.reference("other", 1).as_json()]],
        "by its name": fleet.reference(its, 0).as_json(),
        "freed here": fleet.reference("gone-0", 0).as_json(),
        "freed there": fleet.reference("gone-1", 1).as_json(),
        "away": fleet.reference("away", AWAY).as_json(),
        "scaled away": RemoteTensor(Owner(7, "0" * 12).derived(TENSOR, 1), "", (), "bool").as_json(),
        "foreign": RemoteTensor("foreign", ELSEWHERE, (), "bool").as_json(),
        "twice": fleet.reference("other", 1).as_json(),
        "not one": {"type": "remote_tensor", "shard_id": 3},
    }
    assert len(list(remote_tensors(metadata))) == 9
    async with fleet.gatherer.of_session(1, metadata) as found:
        assert found.tensors.keys() == {"tied", "own", "other", its}
        assert set(found.gone) == {"gone-0", "gone-1", "foreign", Owner(7, "0" * 12).derived(TENSOR, 1)}
        assert found.unreachable == ["away"]
        for tensor in found.tensors.values():
            assert tensor.form == FORM
            assert [await asyncio.to_thread(tensor.read) for _ in range(2)] == [DATA, DATA]
        assert len(list((fleet.folder / "0" / "shards").iterdir())) == 4
        assert await fleet.here.orphans.count() == 0
    assert len(list((fleet.folder / "0" / "shards").iterdir())) == 2, "what was fetched is given back"


async def test_what_is_too_large_here_is_not_fetched(fleet: Fleet) -> None:
    form, data = form_of_all("uint8", 2000)
    await put(fleet.there, "large", one_tensor(form, data), ttl=100)
    async with fleet.gatherer.gathered([fleet.reference("large", 1)]) as found:
        assert found.unreachable == ["large"] and not found.tensors
    assert list((fleet.folder / "0" / "shards").iterdir()) == []


async def test_a_key_that_is_refused_is_said_so_and_not_shown(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    await put(fleet.there, "other", ttl=100)
    fleet.gatherer.admin_key = lambda: "another-key-altogether"
    async with fleet.gatherer.gathered([fleet.reference("other", 1)]) as found:
        assert found.unreachable == ["other"]
    assert "could not be fetched" in caplog.text and "401" in caplog.text and "altogether" not in caplog.text


async def test_an_owner_that_hangs_is_waited_for_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "TIMEOUT", 0.3)
    asked: list[asyncio.StreamWriter] = []
    references = [fleet.reference(f"slow-{at}", AWAY) for at in range(50)]
    listening = await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", PORTS[AWAY])
    async with listening, fleet.gatherer.gathered(references) as found:
        assert len(found.unreachable) == 50
    for writer in asked:
        writer.close()
    assert 1 <= len(asked) <= gathering.CONCURRENT_FETCHES
