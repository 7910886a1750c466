"""Shards on a full disk: what has no room is refused, and nothing of it is kept."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleets import ProxyProcess, running_fleet
from tests.integration.proxy.shard_calls import MIB, NONE, delete, error, export, files, put, shards_of, talked
from tests.system.disks import small_disk
from tests.unit.proxy.shards.shelf import safetensors as one_tensor

from rolloutfleet.errors import STORE_FULL
from rolloutfleet.tensors import Form

DISK = 16
"""Megabytes."""


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    """Its store is on a small disk, which it may fill."""
    settings = {"sessions": {"limits": {"bytes": "1Ti"}}}
    with running_fleet(tmp_path, settings=settings, start_proxies=False) as fleet:
        proxy = fleet.proxy
        with small_disk(Path(proxy.settings["state_dir"]), megabytes=DISK):
            try:
                proxy.start()
                yield proxy
            finally:
                proxy.stop()


def test_a_full_disk_refuses_a_shard_and_keeps_nothing_of_it(proxy: ProxyProcess) -> None:
    body = one_tensor(Form("uint8", (4 * MIB,)), bytes(4 * MIB))
    stored = 0
    while (reply := put(proxy, f"s{stored}", body)).status_code == 201:
        stored += 1
        assert stored < 5
    assert error(reply) == (507, STORE_FULL) and reply.headers["x-should-retry"] == "false"
    assert len(files(proxy)) == stored and shards_of(proxy)["count"] == stored
    assert put(proxy, "small").status_code == 201, "what fits is still taken"
    assert delete(proxy, "s0").json() == {"deleted": 1, "bytes": 4 * MIB, "ordinals": [0], "failed": []}
    assert put(proxy, "again", body).status_code == 201


def test_an_export_that_finds_no_room_gives_everything_back(proxy: ProxyProcess) -> None:
    for _ in range(12):
        talked(proxy)
    filler = Path(proxy.settings["state_dir"]) / "filler"
    free = shutil.disk_usage(filler.parent).free
    filler.write_bytes(bytes(free - 120 * 1024))
    refused = export(proxy)
    assert error(refused) == (507, STORE_FULL)
    assert files(proxy) == [] and shards_of(proxy) == NONE
    filler.unlink()
    audit = proxy.audit()
    assert audit["balanced"] and audit["turns"]["leased"] == 0
    assert len(export(proxy).json()["trajectories"]) == 12 and shards_of(proxy)["count"] == 60
