"""A proxy's shards with their real store, driven from plain code."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.unit.proxy.stores import SyncStore

from rolloutfleet.tensors import CODES, Form, write_header
from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.store.sessions import start


def safetensors(form: Form, data: bytes, *, name: str = "x") -> bytes:
    """A file of one tensor, as a client writes it."""
    return write_header([(name, form)]) + data


def form_of_all(dtype: str, *shape: int) -> tuple[Form, bytes]:
    """A tensor in whose bytes every value of a byte comes up, NaNs and negative zeros of all types with them."""
    assert dtype in CODES
    form = Form(dtype, shape)
    return form, bytes(at * 37 % 256 for at in range(form.nbytes))


class Shelf:
    """`store` with shards beside it. Times are the store's own clock; `clock` is that of orphans."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SyncStore(folder / "store")
        self.seconds = 0.0
        self._open()

    def _open(self) -> None:
        self.reader = self.store.store.reader
        self.shards: Shards = self.run(Shards.open(self.folder / "shards", self.store.store))
        self.shards.orphans.clock = lambda: self.seconds

    def _shut(self) -> None:
        self.shards.close()

    def run(self, work: Any) -> Any:
        return self.store._runner.run(work)

    def reopen(self) -> None:
        """As after a restart."""
        self._shut()
        self.store.reopen()
        self._open()

    def close(self) -> None:
        self._shut()
        self.store.close()

    def put(self, name: str, body: bytes, *, pieces: int = 1, **owner: Any) -> bool:
        """Whether it was not there before."""
        _, fresh = self.run(self.shards.put(name, _in_pieces(body, pieces), **owner))
        assert isinstance(fresh, bool)
        return fresh

    def get(self, *names: str) -> bytes | None:
        """A file with all of these, or None where one is not kept."""
        found = self.run(self.shards.find(names))
        if len(found) < len(set(names)):
            return None
        body = self.shards.body(found.values())
        whole = b"".join(body.pieces)
        assert len(whole) == body.size
        return whole

    def delete(self, *names: str) -> tuple[int, int]:
        done: tuple[int, int] = self.run(self.shards.delete(names))
        return done

    def tick(self, *, after: float = 0.0) -> None:
        self.store.advance(after)
        self.run(self.shards.tick())

    def files(self) -> list[Path]:
        return sorted((self.folder / "shards").iterdir())

    def start_session(self) -> tuple[int, str]:
        new = StartSessions()
        _, [started] = self.store.run(lambda transaction: start(transaction, self.store.owner, new))
        [(row,)] = self.store.rows("SELECT id FROM sessions WHERE name = ?", started.name)
        return row, started.name


async def _in_pieces(body: bytes, pieces: int) -> AsyncIterator[bytes]:
    size = max(1, math.ceil(len(body) / pieces))
    for at in range(0, len(body), size):
        yield body[at : at + size]
        await asyncio.sleep(0)
