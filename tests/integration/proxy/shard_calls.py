"""Shards of whole proxies, as tests ask for them, and sessions whose export may be shards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.fleets import AgentSession, ProxyProcess
from tests.unit.proxy.shards.shelf import form_of_all
from tests.unit.proxy.shards.shelf import safetensors as one_tensor
from tests.waiting import until

from rolloutfleet.tensors import Form

Json = Any
MIB = 2**20
SMALL = one_tensor(*form_of_all("bfloat16", 2, 3))
NONE = {"count": 0, "bytes": 0, "orphans": 0}


def put(proxy: ProxyProcess, name: str, body: Any = SMALL, **query: Json) -> httpx.Response:
    with proxy.admin() as admin:
        return admin.put(f"/shards/{name}", params=query, content=body)


def get(proxy: ProxyProcess, name: str, **query: Json) -> httpx.Response:
    with proxy.admin() as admin:
        return admin.get(f"/shards/{name}", params=query)


def batch(proxy: ProxyProcess, *names: str, **asked: Json) -> httpx.Response:
    with proxy.admin() as admin:
        return admin.post("/shards/batch", json={"ids": names, **asked})


def delete(proxy: ProxyProcess, *names: str) -> httpx.Response:
    with proxy.admin() as admin:
        return admin.request("DELETE", "/shards", json={"ids": names})


def error(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def shards_of(proxy: ProxyProcess) -> Json:
    return proxy.audit()["shards"]


def files(proxy: ProxyProcess) -> list[Path]:
    return sorted((Path(proxy.settings["state_dir"]) / "shards").iterdir())


def wait_until_no_files(proxy: ProxyProcess) -> None:
    """Files that have just been read, or whose time has just come, go at the next tick."""
    until(lambda: not files(proxy))


def large(mebibytes: int) -> Iterator[bytes]:
    """A shard's body of so many MiB, in parts."""
    yield one_tensor(Form("float32", (mebibytes * 2**18,)), b"")
    for _ in range(mebibytes):
        yield bytes(range(256)) * (MIB // 256)


def fetched(proxy: ProxyProcess, method: str, path: str, **options: Any) -> int:
    """Bytes of an answer, none of which are kept here."""
    with proxy.admin() as admin, admin.stream(method, path, **options) as reply:
        assert reply.status_code == 200
        return sum(len(data) for data in reply.iter_raw())


def talked(proxy: ProxyProcess, *, times: int = 1) -> AgentSession:
    """A session with a closed trajectory."""
    return talk(proxy.start_session(), times=times)


def talk(session: AgentSession, *, times: int = 1) -> AgentSession:
    for number in range(times):
        chat = {"messages": [{"role": "user", "content": f"Tell me of {number}"}], "max_tokens": 40}
        assert session.raw_chat(chat).status_code == 200
    assert session.post("close").status_code == 200
    return session


def export(proxy: ProxyProcess, *, key: str | None = None, **asked: Json) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    with proxy.admin() as admin:
        return admin.post("/export", json={"as": "shards", **asked}, headers=headers)
