"""A real SGLang on the CPU with a local fleet before it, and modules that run in another Python, where PyTorch is."""

import asyncio
import contextlib
import os
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.engine.sglang import launch
from tests.engine.sglang.places import Installed
from tests.processes import free_port, serving

from rolloutfleet.specfile import load_fleet
from rolloutfleet_operator.local import LocalFleet

ROOT: Final = Path(__file__).resolve().parents[1]
SECONDS_TO_START: Final = 400.0
RESOURCE: Final = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {{name: {name}}}
spec:
  model: tiny
  tokenizer: {{path: {model}}}
  proxies: {{replicas: 2}}
  gateway: {{engines: {{urls: ["{engine}"]}}}}
"""
RUN: Final = (
    "import os, runpy, sys; sys.path += sys.argv.pop(1).split(os.pathsep); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__')"
)
"""What the other Python's environment lacks comes from others, and from this one."""


@contextlib.asynccontextmanager
async def real_fleet(folder: Path, installed: Installed, *, name: str) -> AsyncIterator[Path]:
    """Both, in a folder of theirs; where fleet.json is. Raises NotServing, LocalFleetError."""
    model = installed.model("first")
    port = free_port()
    with serving(
        launch.command(installed, model=model, port=port, request_log=folder / "requests"),
        port=port,
        log=folder / "sglang.log",
        environment=launch.environment(installed),
        deadline=SECONDS_TO_START,
    ) as engine:
        resource = folder / "fleet.yaml"
        resource.write_text(RESOURCE.format(name=name, model=model, engine=engine.url))
        state = folder / "state"
        fleet = LocalFleet(load_fleet(resource), state_dir=state, beside=folder, report=lambda _: None)
        await fleet.start()
        try:
            yield state
        finally:
            await fleet.stop()


def command_of(
    python: Path, module: str, words: Sequence[str], *, beside: Iterable[Path] = (), processes: int = 1
) -> list[str]:
    """A module of this repository, with its arguments, in another Python. Start it in ROOT.

    `beside` are folders of packages that come before this environment's. Of several `processes`, each is a rank of
    `torch.distributed`.
    """
    packages = os.pathsep.join([*map(str, beside), sysconfig.get_path("purelib")])
    command = [str(python), "-W", "ignore", "-c", RUN, packages, module, *words]
    if processes == 1:
        return command
    torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*torchrun, "--no-python", *command]


def environment_of(installed: Installed) -> dict[str, str]:
    """The variables that `command_of` needs."""
    ours = [str(ROOT / name) for name in ("client", "")]
    return launch.environment(installed, os.environ) | {"PYTHONPATH": os.pathsep.join(ours)}


async def run(command: Sequence[str], installed: Installed) -> int:
    """Run what `command_of` says to its end; the exit status."""
    program = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment_of(installed), stdin=subprocess.DEVNULL
    )
    try:
        return await program.wait()
    finally:
        if program.returncode is None:
            program.terminate()
            await program.wait()
