"""Dumps on bad disks: nothing is removed that can't be written."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fleets import ProxyProcess, running_fleet
from tests.integration.proxy.cleaning import LIVES, SOON, dump_folder, dumped_turns, is_gone, talk
from tests.system.disks import fill, small_disk
from tests.waiting import until


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    """Not yet started."""
    with running_fleet(tmp_path, settings={"sessions": SOON}, start_proxies=False) as fleet:
        yield fleet.proxy


def mount(folder: Path, *how: str) -> None:
    done = subprocess.run(["mount", *how, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"nothing can be mounted here: {done.stderr.strip()}")


def test_where_dumps_cant_be_written_nothing_is_removed(proxy: ProxyProcess) -> None:
    """A read-only folder, then a full disk; when that clears, the next sweep succeeds."""
    folder = dump_folder(proxy)
    with small_disk(folder, megabytes=1):
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
