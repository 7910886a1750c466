"""Answers that no proxy gives, to clients that block."""

import asyncio
import traceback
from collections.abc import Callable
from contextlib import closing

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rolloutfleet.fleet import FleetError, Whereabouts
from rolloutfleet.remote_tensors.shard_client import ShardClient
from rolloutfleet.tensors import Form

A_TENSOR = Form("uint8", (1,)), memoryview(b"1")


def shards(url: str, call: str, *arguments: object) -> None:
    with closing(ShardClient([url], "key")) as client:
        getattr(client, call)(url, *arguments)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda url: Whereabouts.from_url(url, admin_key="key").proxies(), "proxies is not as expected"),
        (lambda url: shards(url, "put", "sh1", *A_TENSOR), "not a remote_tensor"),
        (lambda url: shards(url, "delete", ["sh1"]), "deleted, bytes is not as expected"),
    ],
    ids=["whereabouts", "put of a shard", "delete of shards"],
)
async def test_answer_of_another_server_is_a_failure_and_is_not_quoted(ask: Callable[[str], object], why: str) -> None:
    async def something_else(_: web.Request) -> web.Response:
        return web.json_response({"api_key": "rfs-a-key"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", something_else)
    async with TestServer(app) as server:
        with pytest.raises(FleetError, match=f"something else than a proxy does: .*{why}") as raised:
            await asyncio.to_thread(ask, str(server.make_url("")).rstrip("/"))
    assert "rfs-a-key" not in "".join(traceback.format_exception(raised.value))
