"""GRPO by TRL on a real SGLang on the CPU: `make trl`, or `python -m examples.trainers.trl` with SGLang installed.

Starts SGLang with a tiny transformer of random weights, and before it a local fleet: two proxies and the real gateway.
Then train.py, with two turns an episode, runs in TRL's own environment, which is made where it is not there. Every
update is compared with what the fleet exported (watching.py).
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from e2e.results import checked_out
from examples.real_fleet import command_of, real_fleet, run
from examples.tiny_rl.picture import draw
from rich.console import Console
from rich.table import Table
from tests.engine.sglang.places import Installed, find
from tests.processes import NotServing
from toolchain import environments

from rolloutfleet_operator.local import LocalFleetError

LOCK = Path(__file__).parents[1] / "environments" / "trl.lock"
UPDATES, CHECKED = 25, 3

console = Console(highlight=False)


def python_of_trl() -> Path:
    """The interpreter of TRL's environment. Raises NotInstalled."""
    return environments.python_of(LOCK, kind="trainers")


def main() -> int:
    asked = _arguments()
    installed = find()
    if installed is None:
        console.print("[red]The real SGLang is not installed.[/] `make trl` installs it first (10 GB).")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="rolloutfleet-trl-"))
    try:
        return asyncio.run(_run(folder, installed, asked))
    except (NotServing, LocalFleetError, environments.NotInstalled) as error:
        console.print(f"[red]{error}[/]")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(folder: Path, installed: Installed, asked: argparse.Namespace) -> int:
    python, results = python_of_trl(), folder / "results.json"
    console.print("starting SGLang (a minute) and a fleet")
    async with real_fleet(folder, installed, name="trl") as fleet:
        words = ["--fleet", str(fleet), "--weights", str(folder / "weights"), "--results", str(results)]
        words += ["--updates", str(asked.updates or (CHECKED if asked.check else UPDATES)), "--seed", str(asked.seed)]
        words += ["--shuffle-rewards"] if asked.shuffle_rewards else []
        words += ["--fail", "--evaluate", "2"] if asked.check else []
        command = command_of(python, "examples.trainers.trl.run", words, processes=asked.processes)
        status = await run(command, installed)
    if results.exists():
        _show(json.loads(results.read_text()))
    if status == 0 and asked.output:
        _keep(results, asked)
    return status


def _show(found: dict[str, list[dict[str, float]]]) -> None:
    table = Table(box=None)
    for name in found["steps"][0]:
        table.add_column(name.replace("_", " "))
    for step in found["steps"]:
        table.add_row(*(f"{value:.2g}" if isinstance(value, float) else str(value) for value in step.values()))
    console.print(table)


def _keep(results: Path, asked: argparse.Namespace) -> None:
    asked.output.mkdir(parents=True, exist_ok=True)
    name = "shuffled" if asked.shuffle_rewards else "trained"
    found = {"commit": checked_out(), **json.loads(results.read_text())}
    (asked.output / f"trl-{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    files = {kind: asked.output / f"trl-{kind}.json" for kind in ("trained", "shuffled")}
    runs = {kind: json.loads(file.read_text()) for kind, file in files.items() if file.exists()}
    (asked.output / "trl.svg").write_text(draw(runs))
    console.print(f"written to {asked.output}: trl-{name}.json, trl.svg")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.trainers.trl", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help=f"{CHECKED} updates and two evaluations, with agents that fail"
    )
    parser.add_argument("--updates", type=int, help=f"how many (default {UPDATES})")
    parser.add_argument("--shuffle-rewards", action="store_true", help="the control: each reward goes to somebody else")
    parser.add_argument("--processes", type=int, choices=(1, 2, 4), default=1, help="the table is of the first")
    parser.add_argument("--seed", type=int, default=7, help="of weights and shuffling (default 7)")
    parser.add_argument("--output", type=Path, help="a folder for results and plot; both kinds of run share one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
