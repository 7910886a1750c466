"""Twelve of the largest bodies at once, within a small memory budget: some are refused, and the worker lives."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from tests.fleets import ProxyProcess, running_fleet

from rolloutfleet.errors import CONTEXT_LENGTH_EXCEEDED, NO_ROOM
from rolloutfleet.spec import MEMORY_LIMIT_FACTOR

BUDGET = 512 << 20
ONE_TEXT = [{"role": "user", "content": "word " * 12_000_000}]
MANY_TEXTS = [{"role": ("user", "assistant")[index % 2], "content": "word " * 60} for index in range(170_001)]
"""With nearly as many JSON values as a body may have."""


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with running_fleet(tmp_path, settings={"memory": {"rss_budget": BUDGET}}) as fleet:
        yield fleet.proxy


class Watch:
    """Looks at the memory of a process tree until told to end."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._root = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            tree = [self._root, *self._root.children(recursive=True)]
            self.most = max(self.most, sum(each.memory_info().rss for each in tree if each.is_running()))


@pytest.mark.parametrize("messages", [ONE_TEXT, MANY_TEXTS], ids=["one text", "many texts"])
def test_large_bodies_at_once_stay_within_a_small_budget(proxy: ProxyProcess, messages: list[object]) -> None:
    body = json.dumps({"messages": messages, "max_tokens": 5}).encode()
    sessions = [proxy.start_session() for _ in range(12)]
    before = proxy.stats()["pid"]
    assert proxy.process is not None
    with Watch(proxy.process.pid) as watch, ThreadPoolExecutor(len(sessions)) as pool:
        replies = list(pool.map(lambda session: session.raw_chat(body), sessions))
    codes = {reply.json()["error"]["code"] for reply in replies}
    assert NO_ROOM in codes and codes <= {NO_ROOM, CONTEXT_LENGTH_EXCEEDED}
    assert watch.most < BUDGET * MEMORY_LIMIT_FACTOR, f"{watch.most >> 20} MiB"
    assert proxy.stats()["pid"] == before
