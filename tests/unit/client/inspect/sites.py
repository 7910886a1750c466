"""The page for tests: its application without a server, and a browser that was let in."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp
from tests.unit.client.dumps.samples import SESSION, head, turn

from rolloutfleet.dumps.form import DumpedTurn, encode
from rolloutfleet.inspect.access import Access
from rolloutfleet.inspect.app import application
from rolloutfleet.inspect.folder import FolderSource
from rolloutfleet.inspect.tabs import Tabs
from rolloutfleet.viewing import Texts, load_texts

BASE = "http://127.0.0.1:7433"
Json = Any


@dataclass
class Site:
    """The application, and the tokens that were printed for it."""

    app: ASGIApp
    source: FolderSource
    tabs: Tabs
    tokens: list[str]

    def browser(self, **options: Any) -> httpx.AsyncClient:
        """One that nobody has let in."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=BASE, **options)

    @contextlib.asynccontextmanager
    async def let_in(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.browser() as browser:
            answer = await browser.get("/", params={"token": self.tokens[-1]})
            assert answer.status_code == 303
            yield browser


@contextlib.asynccontextmanager
async def site(folder: Path, texts: Texts | None = None) -> AsyncIterator[Site]:
    """Of a folder that has been looked through."""
    source, tokens = FolderSource(folder, texts or load_texts(None)), list[str]()
    await source.refresh()
    access = Access(tokens.append)
    access.open()
    tabs = Tabs()
    yield Site(application(source, tabs, access), source, tabs, tokens)


async def document(browser: httpx.AsyncClient, path: str) -> Json:
    answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def write_dump(file: Path, turns: list[DumpedTurn], **given: Any) -> Path:
    """Of `SESSION`, unless its `session` says otherwise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    session = head().session.model_copy(update=given.pop("session", {}))
    file.write_bytes(b"".join(encode(head(session=session, **given), turns)))
    return file


def branched() -> list[DumpedTurn]:
    """A chain of two turns, and a branch from the first."""
    first = turn(1, new=5, sampled=700, reward=None)
    second = turn(2, parent=first, new=600, sampled=1, reward=1.0)
    return [first, second, turn(3, parent=first, reward=0.0)]


def whole(folder: Path) -> Path:
    """A folder with one dump."""
    return write_dump(folder / f"{SESSION}-trajectory-2.json", branched()).parent
