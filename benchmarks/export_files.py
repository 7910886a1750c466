"""An export of 10,000 trajectories, beside reading the same from safetensors files directly: time and peak memory.

Sessions of one turn are made on a fleet of two proxies with a simulated engine. Then three processes, one after the
other: one iterates over `Fleet.export` and gives everything back, one runs `rolloutfleet export --to safetensors`, and
one reads the files that this wrote, row by row, with the safetensors library alone. Memory is the peak of the process.

    python -m benchmarks.export_files
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import track
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet

from rolloutfleet import AsyncFleet, Whereabouts

GROUP = 50
AT_ONCE = 8
"""Groups: each closes all of its sessions at once, and more than a few hundred calls wait too long for a connection."""
console = Console(stderr=True, highlight=False)

ITERATE = """\
import contextlib, json, sys
from rolloutfleet import Fleet
class Seen(Exception): pass
url, key = sys.argv[1:]
tokens = count = 0
with contextlib.suppress(Seen), Fleet.from_url(url, admin_key_file=key) as fleet, fleet.export(page=32) as export:
    for trajectory in export:
        count, tokens = count + 1, tokens + sum(int(row.tensors["loss_mask"].sum()) for row in trajectory.rows)
    raise Seen
"""
READ = """\
import json, sys
from pathlib import Path
from safetensors import safe_open
NAMES = ("input_ids", "loss_mask", "logprobs", "versions", "turn_ids")
tokens = count = 0
for part in sorted(Path(sys.argv[1]).glob("part-*.safetensors")):
    with safe_open(part, "numpy") as file:
        described = json.loads(file.metadata()["export"])
        tensors = {name: file.get_tensor(name) for name in NAMES}
        ends = file.get_tensor("cu_seqlens")
    count += len(described["trajectories"])
    for begin, end in zip(ends, ends[1:]):
        row = {name: flat[begin:end].copy() for name, flat in tensors.items()}
        tokens += int(row["loss_mask"].sum())
"""
WRITE = """\
import contextlib, json
from rolloutfleet.cli import main
count = tokens = 0
with contextlib.suppress(SystemExit):
    main()
"""
TELL = """
from pathlib import Path
status = Path("/proc/self/status").read_text()
print(json.dumps([count, tokens, int(status.split("VmHWM:")[1].split()[0]) / 1024]))
"""
"""Ends each of them: what it went through, and its largest resident memory in MB."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A process that went through all trajectories."""

    what: str
    seconds: float
    cpu_seconds: float
    peak_mb: float
    trajectories: int
    tokens: int


def main() -> None:
    asked = _arguments()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        with running_fleet(folder, proxies=2) as fleet:
            asyncio.run(_fill(fleet, asked.trajectories, asked.tokens))
            seen = list(_measured(fleet, folder))
    for each in seen:
        name = each.what
        print(f"export_{name}_seconds {each.seconds:.2f} s")
        print(f"export_{name}_cpu {each.cpu_seconds:.2f} s")
        print(f"export_{name}_peak {each.peak_mb:.0f} MB")
    if asked.output is not None:
        record = {
            "command": f"python -m benchmarks.export_files --trajectories {asked.trajectories} --tokens {asked.tokens}",
            "cores": os.cpu_count(),
            "load_before": before,
            "load_after": os.getloadavg(),
            "measured": [asdict(each) for each in seen],
        }
        asked.output.write_text(json.dumps(record, indent=1) + "\n")


async def _fill(running: Running, trajectories: int, tokens: int) -> None:
    """So many sessions of one turn, closed."""
    room = asyncio.Semaphore(AT_ONCE)
    where = Whereabouts.from_url(running.proxy.url, admin_key=running.proxy.key)
    async with AsyncFleet(where) as fleet, httpx.AsyncClient(timeout=120, trust_env=False) as http:

        async def group(number: int) -> None:
            size = min(GROUP, trajectories - number * GROUP)
            async with room, await fleet.start_group(size, f"task-{number}") as sessions:
                for session in sessions:
                    message = {"role": "user", "content": f"Say something long about {session.session_id}."}
                    asked = {"model": "simulated", "messages": [message], "max_tokens": tokens, "ignore_eos": True}
                    headers = {"authorization": f"Bearer {session.api_key}"}
                    answer = await http.post(f"{session.base_url}/chat/completions", json=asked, headers=headers)
                    answer.raise_for_status()

        work = [asyncio.create_task(group(number)) for number in range(-(-trajectories // GROUP))]
        for done in track(asyncio.as_completed(work), "making sessions", total=len(work), console=console):
            await done


def _measured(fleet: Running, folder: Path) -> Sequence[Measured]:
    key, parts = fleet.proxy.folder.parent / "admin.key", folder / "parts"
    url = fleet.proxy.url
    where = ("--url", url, "--admin-key-file", str(key))
    iterated = _run("iterated", ITERATE, url, str(key))
    written = _run("written", WRITE, "export", "--to", "safetensors", "-o", str(parts), *where)
    read = _run("read_from_files", READ, str(parts))
    assert (read.trajectories, read.tokens) == (iterated.trajectories, iterated.tokens), (read, iterated)
    return [iterated, written, read]


def _run(what: str, program: str, *words: str) -> Measured:
    """Run a program, which says at its end what it went through."""
    console.print(f"{what} …")
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", program + TELL, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    trajectories, tokens, peak = json.loads(said.splitlines()[-1])
    return Measured(what, time.monotonic() - begun, usage.ru_utime + usage.ru_stime, peak, trajectories, tokens)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export_files", description=__doc__.partition("\n")[0])
    parser.add_argument("--trajectories", type=int, default=10_000, help="how many (default 10,000)")
    parser.add_argument("--tokens", type=int, default=200, help="sampled in each (default 200)")
    parser.add_argument("--output", type=Path, help="a JSON file for the record")
    return parser.parse_args()


if __name__ == "__main__":
    main()
