"""Clean-up under kills, bad disks and set clocks: the sums hold, no file is seen half written, and nothing is lost."""

import contextlib
import importlib.util
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.integration.proxy.test_cleanup import CHAT, LIVES, SOON, dump_folder, is_gone, talk
from tests.system.disks import fill, unmount
from tests.waiting import PATIENCE, until

from rolloutfleet.dumps import decode, verify
from rolloutfleet.errors import SESSION_RECLAIMED
from rolloutfleet_proxy.failpoints import AFTER_DUMP, AFTER_RENAME, BEFORE_COMMIT, MID_DUMP, MID_SWEEP, VARIABLE
from rolloutfleet_proxy.services.sweeping import BATCH

SESSIONS = 6


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("faults"), settings={"sessions": SOON}, start_proxies=False) as running:
        yield running


@pytest.fixture
def proxy(fleet: Fleet, tmp_path: Path) -> Iterator[ProxyProcess]:
    """A proxy with a store of its own, not yet started."""
    proxy = fleet.proxy
    proxy.settings["state_dir"] = str(tmp_path / "state")
    proxy.environment = {}
    yield proxy
    proxy.stop()


def dumped_turns(proxy: ProxyProcess) -> Counter[str]:
    """How often each turn is in a dump as its own; every file is whole."""
    turns: Counter[str] = Counter()
    for file in dump_folder(proxy).glob("s*"):
        with file.open("rb") as opened:
            assert verify(opened, name=file.name) == []
        turns.update(turn.turn_id for turn in decode(file.read_bytes()).turns if not turn.context)
    return turns


def conversations(proxy: ProxyProcess) -> set[str]:
    """Sessions with trajectories and open turns; returns the ids of their turns."""
    turns: set[str] = set()
    for number in range(SESSIONS):
        session = proxy.start_session()
        turns.update(talk(session, turns=2))
        if number % 2:
            session.post("reward", {"reward": 1.0})
            turns.update(talk(session))
    return turns


def test_kills_everywhere_in_a_sweep_lose_nothing(proxy: ProxyProcess) -> None:
    proxy.settings["sessions"] = {**SOON, "stale_after": 3600}
    proxy.start()
    turns = conversations(proxy)
    # More than one batch, so that the last kill is between two.
    with proxy.admin() as admin:
        for _ in range(BATCH):
            admin.post("/sessions", json={}).raise_for_status()
    proxy.kill()
    proxy.settings["sessions"] = {**SOON, "stale_after": 0.2}
    for place, times in ((MID_DUMP, 3), (AFTER_RENAME, 2), (AFTER_DUMP, 1), (MID_SWEEP, 1), (BEFORE_COMMIT, 2)):
        proxy.environment = {VARIABLE: f"{place}:{times}"}
        proxy.launch()
        proxy.wait_until_killed(PATIENCE)
        dumped = dumped_turns(proxy)
        assert set(dumped) <= turns and set(dumped.values()) <= {1}, f"{place}: what is there is whole"
    proxy.environment = {}
    proxy.start()
    until(lambda: proxy.audit()["sessions"]["live"] == 0)
    audit = proxy.audit()
    assert audit["balanced"] and audit["keys"] == 0
    assert audit["turns"]["dumped"] == len(turns) and audit["sessions"]["dumped"] == SESSIONS
    assert dumped_turns(proxy) == Counter(turns), "each turn is in one dump, once"
    assert [path.name for path in dump_folder(proxy).iterdir() if not path.name.startswith("s")] == []
    judge.assert_sound(proxy)


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
        """Calls on their way, none of them answered while a second passes and others are."""
        futures = [self.pool.submit(call) for call in calls]
        time.sleep(1.0)
        assert not any(future.done() for future in futures)
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
    for file in dump_folder(proxy).iterdir():
        file.unlink()
    held.let_go()
    assert waiting.result(PATIENCE).status_code == 200
    assert len(session.turns()) == 2 and proxy.audit()["turns"]["dumped"] == 0


# Disks


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "128k") -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    mount(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    try:
        yield
    finally:
        unmount(folder)


def mount(folder: Path, *how: str) -> None:
    done = subprocess.run(["mount", *how, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


def test_where_dumps_cant_be_written_nothing_is_removed(proxy: ProxyProcess) -> None:
    """A read-only folder, then a full disk; when that clears, the next sweep succeeds."""
    folder = dump_folder(proxy)
    with small_disk(folder):
        fill(folder / "filler")  # now: were it done between the two, a sweep might come first
        mount(folder, "-o", "remount,ro")
        try:
            proxy.start()
            empty = proxy.start_session()
            session = proxy.start_session(stale_after=LIVES)
            turns = talk(session, turns=2)
            stats = until(lambda: (now := proxy.stats())["dump"]["failing"] and now)
            assert "Read-only" in stats["dump"]["error"] and stats["dump"]["failures"]
            assert [turn["turn_id"] for turn in session.turns()] == turns
            until(lambda: is_gone(empty))
            assert httpx.get(f"{proxy.url}/ready").status_code == 200

            mount(folder, "-o", "remount,rw")
            until(lambda: "waits for room" in str(proxy.stats()["dump"]["error"]))
            assert [turn["turn_id"] for turn in session.turns()] == turns
            # The next try may have begun its file by now.
            assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["filler"]
            until(lambda: [path.name for path in folder.iterdir()] == ["filler"])

            (folder / "filler").unlink()
            until(lambda: is_gone(session))
            assert dumped_turns(proxy) == Counter(turns)
            until(lambda: not proxy.stats()["dump"]["failing"])
            assert proxy.audit()["balanced"]
        finally:
            proxy.stop()


# Clocks


def faketime() -> Path:
    """The library that gives one process another wall clock."""
    found = importlib.util.find_spec("libfaketime")
    library = Path(str(found and found.origin)).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    if found is None or not library.exists():
        pytest.skip("libfaketime is not installed")
    return library


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
