"""A whole small training run: `make tiny-rl`, or `python -m examples.tiny_rl` with the real SGLang installed.

Starts a real SGLang on the CPU with a tiny transformer, and before it a local fleet: two proxies and the real gateway.
Then trainer.py runs in SGLang's own environment, where PyTorch is: agents roll out, their rewards become GRPO updates,
each update is loaded by the engine under a new version. At the end it checks the log-probabilities of whole sessions
(parity.py) and writes a table and a plot.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from examples.real_fleet import command_of, real_fleet, run
from examples.tiny_rl.picture import draw, table
from rich.console import Console
from tests.engine.sglang.places import Installed, find
from tests.processes import NotServing

from rolloutfleet_operator.local import LocalFleetError

console = Console(highlight=False)


def main() -> int:
    asked = _arguments()
    installed = find()
    if installed is None:
        console.print("[red]The real SGLang is not installed.[/] `make tiny-rl` installs it first (10 GB).")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="rolloutfleet-tiny-rl-"))
    try:
        return asyncio.run(_run(folder, installed, asked))
    except (NotServing, LocalFleetError) as error:
        console.print(f"[red]{error}[/]")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(folder: Path, installed: Installed, asked: argparse.Namespace) -> int:
    console.print("starting SGLang (a minute) and a fleet")
    results = folder / "results.json"
    async with real_fleet(folder, installed, name="tiny-rl") as fleet:
        words = ["--fleet", str(fleet), "--folder", str(folder), "--results", str(results)]
        words += ["--steps", str(asked.steps), "--seed", str(asked.seed)]
        words += ["--shuffle-rewards"] if asked.shuffle_rewards else []
        status = await run(command_of(installed.python, "examples.tiny_rl.trainer", words), installed)
    if status == 0:
        _keep(json.loads(results.read_text()), asked)
    return status


def _keep(found: dict[str, object], asked: argparse.Namespace) -> None:
    console.print(table(found))
    if asked.output is None:
        return
    asked.output.mkdir(parents=True, exist_ok=True)
    name = "shuffled" if asked.shuffle_rewards else "trained"
    (asked.output / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    runs = {file.stem: json.loads(file.read_text()) for file in sorted(asked.output.glob("*.json"), reverse=True)}
    (asked.output / "reward.svg").write_text(draw(runs))
    console.print(f"written to {asked.output}: {name}.json, reward.svg")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_rl", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30, help="how many updates (default 30; 0: only the parity check)")
    parser.add_argument("--shuffle-rewards", action="store_true", help="the control: each reward goes to somebody else")
    parser.add_argument("--seed", type=int, default=7, help="of weights and shuffling (default 7)")
    parser.add_argument("--output", type=Path, help="a folder for results and plot; both kinds of run share one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
