"""A batch of Claude Code rollouts for training: `make claude-code`, or `python -m examples.claude_code`.

Starts a local fleet: two proxies, the real gateway, and a simulated engine that says what cues.json lays down. Then the
real Claude Code works on a few tasks, each run in a session of its own (agents.py); what its folder holds in the end is
its reward (tasks.py). At last batch.py, where PyTorch is, exports everything as one batch.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from examples.claude_code.agents import GROUP, RunFailed, roll_out
from examples.claude_code.tasks import TASKS
from rich.console import Console
from tests.agents.programs import claude_code
from tests.engine.sglang import launch
from tests.engine.sglang.places import Installed, find
from toolchain.environments import NotInstalled

from rolloutfleet import AsyncFleet, FleetError
from rolloutfleet.specfile import load_fleet
from rolloutfleet_operator.local import LocalFleet, LocalFleetError

ROOT = Path(__file__).resolve().parents[2]
CUES = Path(__file__).with_name("cues.json")
RESOURCE = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {{name: claude-code}}
spec:
  model: simulated
  proxies: {{replicas: 2}}
  engine: {{simulated: {{cues: {cues}}}}}
"""
RUN = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('examples.claude_code.batch', run_name='__main__')"
)
"""What the environment with PyTorch lacks comes from this one."""

console = Console(highlight=False)


def main() -> int:
    asked = _arguments()
    installed = find()
    if installed is None:
        console.print("[red]PyTorch is not here.[/] `make claude-code` installs it first, with SGLang (10 GB).")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="rolloutfleet-claude-code-"))
    try:
        return asyncio.run(_run(folder, installed, asked))
    except (NotInstalled, LocalFleetError, FleetError, RunFailed) as error:
        console.print(f"[red]{error}[/]")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(folder: Path, installed: Installed, asked: argparse.Namespace) -> int:
    program = claude_code()
    console.print("starting a fleet with a simulated engine")
    async with _fleet(folder):
        console.print(f"{len(TASKS)} tasks, {GROUP} runs of Claude Code each")
        async with AsyncFleet.from_file(folder / "state", progress=False) as fleet:
            rewards = await roll_out(fleet, program=program, folder=folder / "runs")
        return await _batched(installed, folder / "state", len(rewards), asked.output)


@contextlib.asynccontextmanager
async def _fleet(folder: Path) -> AsyncIterator[None]:
    resource = folder / "fleet.yaml"
    resource.write_text(RESOURCE.format(cues=json.dumps(json.loads(CUES.read_text()))))
    fleet = LocalFleet(load_fleet(resource), state_dir=folder / "state", beside=folder, report=lambda _: None)
    await fleet.start()
    try:
        yield
    finally:
        await fleet.stop()


async def _batched(installed: Installed, state: Path, count: int, output: Path) -> int:
    """Run batch.py where PyTorch is; its exit status."""
    words = ("--fleet", str(state), "--count", str(count), "--output", str(output.resolve()))
    ours = [str(ROOT / name) for name in ("client", "")]
    process = await asyncio.create_subprocess_exec(
        *(str(installed.python), "-W", "ignore", "-c", RUN, sysconfig.get_path("purelib"), *words),
        cwd=ROOT,
        env=launch.environment(installed, os.environ) | {"PYTHONPATH": os.pathsep.join(ours)},
        stdin=subprocess.DEVNULL,
    )
    return await process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.claude_code", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("claude-code.pt"), help="the batch (claude-code.pt)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
