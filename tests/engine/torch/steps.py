"""A trainer of four ranks and the proxies that it uses: runs the ranks, and looks at what the proxies hold."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from tests.engine.torch.keepers import Keepers
from tests.waiting import PATIENCE, until

WORLD = 4
LEASE_SECONDS = 5.0
ORPHAN_SECONDS = 60 + PATIENCE
"""A file of nobody's is left in peace for a minute."""


def stepped(
    folder: Path,
    keepers: Keepers,
    *,
    steps: int,
    nbytes: int,
    dies: bool = False,
    seconds: float,
    each_step: Callable[[int], None] = lambda _: None,
    python: Path = Path(sys.executable),
    environment: Mapping[str, str] = os.environ,
) -> list[list[int]]:
    """Bytes of resident memory of each rank after each step, of `nbytes` of images. `each_step` is told of each."""
    folder.mkdir()
    asked = json.dumps({**asdict(keepers), "steps": steps, "bytes": nbytes, "dies": dies})
    ranks = []
    for rank in range(WORLD):
        command = [str(python), "-m", "tests.engine.torch.stepping", str(rank), str(folder), asked]
        with (folder / f"rank-{rank}.log").open("wb") as log:
            ranks.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment))
            )
    seen = 0

    def ended() -> bool:
        nonlocal seen
        head = folder / "rank-0.json"
        done = len(json.loads(head.read_text())) if head.exists() else 0
        if done > seen:
            seen = done
            each_step(done)
        return all(process.poll() is not None for process in ranks)

    try:
        until(ended, seconds=seconds)
    finally:
        for process in ranks:
            process.kill()
        codes = [process.wait() for process in ranks]
    assert codes == ([3, 3, 3, 9] if dies else [0] * WORLD), "\n".join(
        file.read_text()[-3000:] for file in sorted(folder.glob("*.log"))
    )
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]


def ask(keepers: Keepers, url: str, path: str) -> Any:
    headers = {"authorization": f"Bearer {keepers.key}"}
    return httpx.get(f"{url}{path}", headers=headers, timeout=PATIENCE).raise_for_status().json()


def wait_for_turns(keepers: Keepers, *, live: int) -> list[Any]:
    """Until so many turns are live and none is leased, over all proxies. Their audits."""

    def audits() -> list[Any]:
        found = [ask(keepers, url, "/audit") for url in keepers.urls]
        counts = [sum(audit["turns"][name] for audit in found) for name in ("live", "leased")]
        return found if counts == [live, 0] else []

    found: list[Any] = until(audits, seconds=LEASE_SECONDS + PATIENCE)
    return found


def check_nothing_left(keepers: Keepers) -> None:
    for audit in wait_for_turns(keepers, live=0):
        assert audit["balanced"] and (audit["shards"]["count"], audit["shards"]["bytes"]) == (0, 0)
    # A worker that is killed in the middle of a write leaves a file, which is taken for nobody's after a while.
    until(
        lambda: not any(ask(keepers, url, "/audit")["shards"]["orphans"] for url in keepers.urls),
        seconds=ORPHAN_SECONDS,
    )
