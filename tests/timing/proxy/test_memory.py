"""Resident memory of a proxy's processes: bounds that hold whatever clients send, and what /stats says of it."""

import contextlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import psutil
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.edge import answer, connected
from tests.integration.proxy.logged import lines
from tests.integration.proxy.shard_calls import (
    MIB,
    NONE,
    delete,
    fetched,
    get,
    large,
    put,
    shards_of,
    wait_until_no_files,
)
from tests.unit.client.dumps.strangers import BAD_HEADS, BAD_LINES, IRREGULAR
from tests.waiting import until

GROWTH = 32 * MIB


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = {"shard_limit": 240 * MIB, "log": {"format": "json", "stats_interval": 1.0}}
    with running_fleet(tmp_path_factory.mktemp("memory"), proxies=2, settings=settings) as fleet:
        yield fleet


def test_memory_is_that_of_the_whole_tree_with_the_parent(two: Fleet) -> None:
    process = two.proxy.process
    assert process is not None
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    taken = sum(each.memory_info().rss for each in tree)
    assert two.proxy.stats()["rss_bytes"] == pytest.approx(taken, rel=0.1)
    assert psutil.Process(process.pid).memory_info().rss < 20 * MIB


def test_the_line_of_figures_says_what_is_resident(two: Fleet) -> None:
    [*_, last] = until(lambda: lines(two.proxy, "stats"))
    assert last["rss_bytes"] > 10**7 and last["vms_bytes"] > last["rss_bytes"]


def test_a_flood_of_headers_leaves_no_memory_behind(two: Fleet) -> None:
    before = two.proxy.stats()["rss_anon_bytes"]
    start, header = b"GET /health HTTP/1.1\r\nhost: x\r\n", b"x-header: " + b"y" * 1_000_000 + b"\r\n"
    with connected(two.proxy.port, start + header) as flood:
        assert answer(flood.dup())[0] == 431
        with contextlib.suppress(ConnectionError):  # once it is answered, the proxy listens for two seconds more
            for _ in range(99):
                flood.sendall(header)
    assert two.proxy.stats()["rss_anon_bytes"] - before < 20 * MIB


def test_what_is_no_dump_is_looked_at_in_little_memory(two: Fleet) -> None:
    proxy = two.proxy
    folder = Path(proxy.settings["state_dir"]) / "dumps"
    folder.mkdir(exist_ok=True)
    strangers = IRREGULAR | BAD_HEADS | BAD_LINES
    made = {f"s0-0123456789ab-{number:016x}-active.json": make for number, make in enumerate(strangers.values())}
    for name, make in made.items():
        make(folder / name)
    before = proxy.stats()["rss_bytes"]
    with proxy.admin() as admin:
        assert len(admin.get("/dumps", params={"limit": 1000}).raise_for_status().json()["dumps"]) == len(made)
        for name in made:
            assert admin.post("/dumps/import", json={"names": [name]}).status_code == 409
    assert proxy.stats()["rss_bytes"] - before < 200 * MIB


def test_large_shards_go_by_without_staying_in_memory(two: Fleet) -> None:
    """200 MiB in and out, alone, in a batch and through another proxy, against the peak that the kernel saw of each."""
    session = two.proxy.start_session()
    owner, other = (two.proxies[int(session.session_id[1]) ^ at] for at in (0, 1))
    of_session = {"session_id": session.session_id}
    warm = [f"warm{number}" for number in range(6)]
    for proxy, name in product((owner, other), warm):
        put(proxy, name, large(8), **of_session)
        assert get(proxy, name, **of_session).status_code == 200
    before = [begin_new_peak(proxy) for proxy in two.proxies]
    for proxy, name in ((owner, "first"), (other, "second")):
        assert put(proxy, name, large(200), **of_session).status_code == 201
        assert fetched(proxy, "GET", f"/shards/{name}", params=of_session) > 200 * MIB
    assert fetched(owner, "POST", "/shards/batch", json={"ids": ["first", "second"]}) > 400 * MIB
    grown = [peak(proxy) - then for proxy, then in zip(two.proxies, before, strict=True)]
    assert delete(owner, "first", "second", *warm).json()["deleted"] == 8
    assert max(grown) < GROWTH, f"the peaks grew by {[round(each / MIB, 1) for each in grown]} MiB"
    assert session.post("close").status_code == 200
    wait_until_no_files(owner)
    assert [shards_of(proxy) for proxy in two.proxies] == [NONE, NONE]


def begin_new_peak(proxy: ProxyProcess) -> int:
    """Forget the most that the proxy's processes were resident with; returns what they are resident with now."""
    for pid in pids(proxy):
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # proc(5): resets the peak
    return peak(proxy)


def peak(proxy: ProxyProcess) -> int:
    """The most bytes that the proxy's processes were resident with, each by itself, since then."""
    return sum(peak_of(pid) for pid in pids(proxy))


def peak_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(dict(line.split(":", 1) for line in status.splitlines() if ":" in line)["VmHWM"].split()[0]) * 1024


def pids(proxy: ProxyProcess) -> list[int]:
    assert proxy.process is not None
    root = psutil.Process(proxy.process.pid)
    return [process.pid for process in (root, *root.children(recursive=True))]
