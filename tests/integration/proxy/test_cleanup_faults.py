"""Clean-up under kills and set clocks: the sums hold, no file is seen half written, and nothing is lost."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.cleaning import (
    CHAT,
    LIVES,
    SOON,
    die_in_sweeps,
    dump_folder,
    dumped_turns,
    faketime,
    is_gone,
    talk,
)
from tests.waiting import PATIENCE, until

from rolloutfleet.errors import SESSION_RECLAIMED
from rolloutfleet_proxy.failpoints import MID_DUMP, MID_SWEEP, VARIABLE


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(
        tmp_path_factory.mktemp("faults"), beside=shared, settings={"sessions": SOON}, start_proxies=False
    ) as running:
        yield running


@pytest.fixture
def proxy(fleet: Fleet, tmp_path: Path) -> Iterator[ProxyProcess]:
    """A proxy with a store of its own, not yet started."""
    proxy = fleet.proxy
    proxy.settings["state_dir"] = str(tmp_path / "state")
    proxy.environment = {}
    yield proxy
    proxy.stop()


def test_kills_in_a_sweep_lose_nothing(proxy: ProxyProcess) -> None:
    """In the middle of a dump, and between two batches; elsewhere: `tests/timing`."""
    die_in_sweeps(proxy, [(MID_DUMP, 3), (MID_SWEEP, 1)])


# What comes while a session is dumped


@pytest.fixture
def held(proxy: ProxyProcess, tmp_path: Path) -> Iterator["Held"]:
    """A proxy that stops in the middle of a dump, until it is let go."""
    proxy.settings["sessions"] = SOON
    hold = Held(proxy, tmp_path / "hold")
    hold.file.touch()
    proxy.environment = {VARIABLE: f"{MID_DUMP}@{hold.file}"}
    proxy.start()
    yield hold
    hold.let_go()
    hold.pool.shutdown()


class Held:
    def __init__(self, proxy: ProxyProcess, file: Path) -> None:
        self.proxy = proxy
        self.file = file
        self.pool = ThreadPoolExecutor(8)

    def let_go(self) -> None:
        self.file.unlink(missing_ok=True)

    def until_dumping(self, session: AgentSession) -> None:
        until(lambda: list(dump_folder(self.proxy).glob(f".*{session.session_id}*")))

    def coming(self, *calls: Callable[[], httpx.Response]) -> list["Future[httpx.Response]"]:
        """Calls on their way, whose connections the proxy has."""
        worker = psutil.Process(self.proxy.stats()["pid"])

        def are_connected() -> bool:
            found = [each for each in worker.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
            return sum(each.laddr.port == self.proxy.port for each in found) >= len(calls)

        futures = [self.pool.submit(call) for call in calls]
        until(are_connected)
        return futures


def test_a_call_that_comes_while_its_session_is_dumped_waits_for_the_files(held: Held) -> None:
    proxy = held.proxy
    session = proxy.start_session(stale_after=LIVES)
    talk(session)
    held.until_dumping(session)
    other = proxy.start_session(stale_after=60)
    waiting = held.coming(
        lambda: session.raw_chat(CHAT),
        lambda: session.raw_chat({**CHAT, "stream": True}),
        lambda: session.post("touch"),
        lambda: session.post("reward", {"reward": 1.0}),
        lambda: session.post("close"),
    )
    assert all(httpx.get(f"{proxy.url}/{path}", timeout=PATIENCE).status_code == 200 for path in ("health", "ready"))
    assert session.show()["turns"] == 1 and talk(other)
    assert not any(answer.done() for answer in waiting), "nobody else waits"
    held.let_go()
    for answer in waiting:
        reply = answer.result(PATIENCE)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (410, SESSION_RECLAIMED)
        assert error["dumps"] == [f"{session.session_id}-active.json"]
    assert proxy.audit()["balanced"]


def test_a_call_that_comes_while_a_dump_fails_is_served(held: Held) -> None:
    proxy = held.proxy
    session = proxy.start_session(stale_after=LIVES)
    talk(session)
    held.until_dumping(session)
    [waiting] = held.coming(lambda: session.raw_chat(CHAT))
    assert session.show()["turns"] == 1 and not waiting.done()
    for file in dump_folder(proxy).iterdir():
        file.unlink()
    held.let_go()
    assert waiting.result(PATIENCE).status_code == 200
    assert len(session.turns()) == 2 and proxy.audit()["turns"]["dumped"] == 0


# Clocks


def test_a_clock_that_is_set_reaps_nothing(proxy: ProxyProcess, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    proxy.settings["sessions"] = {**SOON, "dump": {"keep": {"age": "1h"}}}
    proxy.environment = {
        "LD_PRELOAD": str(faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    proxy.start()
    dumped = proxy.start_session(stale_after=LIVES)
    talk(dumped)
    until(lambda: is_gone(dumped))
    session = proxy.start_session(stale_after=3600)
    talk(session)
    for setting, days in (("+300d", 300), ("-300d", -300)):
        clock.write_text(setting)
        seen = proxy.start_session(stale_after=60).show()["created_at"]
        assert seen == pytest.approx(time.time() + days * 86400, abs=3600), "the proxy sees the other clock"
        unused = proxy.start_session()
        until(lambda: is_gone(unused))  # noqa: B023
        assert not is_gone(session) and is_gone(dumped), "stale is what was not used, whatever the clock says"
        assert dumped.raw_chat(CHAT).status_code == 410, "nor is its tombstone too old by that"
    assert sum(dumped_turns(proxy).values()) == 1, "and no dump is"
    assert proxy.audit()["balanced"]
