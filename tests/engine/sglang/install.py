"""Installs the real SGLang that the tests in tests/engine judge by, where it is not installed yet: `make sglang`."""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.engine.sglang import launch
from tests.engine.sglang.places import (
    DRIVER_SOURCE,
    LOCK,
    MODEL_SCRIPT,
    SGLANG_VERSION,
    SHIPPED_MODEL,
    Installed,
    environment_is_whole,
    places,
    stamp_of,
)
from toolchain.cache import alone, cache_root

PYTHON_VERSIONS = ">=3.11,<3.13"  # newer ones have no wheels for all that SGLang pins
IMPORTED = "sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler, sglang.srt.models.qwen3"
WEIGHT_SEEDS = {"first": 1, "second": 2}


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, stdin=subprocess.DEVNULL, env=environment)


def install() -> Installed:
    installed = places()
    with alone(cache_root()):
        if not environment_is_whole(installed):
            make_environment(installed)
        if not installed.models.is_dir():
            make_models(installed)
    return installed


def make_environment(installed: Installed) -> None:
    print(f"Installing SGLang {SGLANG_VERSION} into {installed.environment} (about 10 GB)", flush=True)
    started = time.monotonic()
    shutil.rmtree(installed.environment, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "--no-project", "--python", PYTHON_VERSIONS, installed.environment)
    run(
        *(uv, "pip", "sync", "--quiet", "--python", installed.python),
        *("--require-hashes", "--only-binary", ":all:", LOCK),
    )
    make_driver(installed)
    # Shows that it can be imported here, and leaves the byte code that the engine's first start would else wait for.
    run(installed.python, "-W", "ignore", "-c", f"import {IMPORTED}", environment=launch.environment(installed))
    stamp_of(installed).touch()
    print(f"Installed in {time.monotonic() - started:.0f} s", flush=True)


def make_driver(installed: Installed) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("A C compiler is needed. On Debian or Ubuntu: apt-get install gcc libc6-dev")
    installed.driver.mkdir()
    library = installed.driver / "libcuda.so.1"
    run(compiler, "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o", library, DRIVER_SOURCE)


def make_models(installed: Installed) -> None:
    unfinished = installed.models.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name, seed in WEIGHT_SEEDS.items():
        run(
            *(installed.python, MODEL_SCRIPT),
            *("--shipped", SHIPPED_MODEL, "--seed", str(seed), "--output", unfinished / name),
        )
    unfinished.rename(installed.models)


def remove() -> None:
    with alone(cache_root()):
        for pattern in ("sglang-*", "tiny-qwen3-*"):
            for path in cache_root().glob(pattern):
                print(f"Removing {path}", flush=True)
                shutil.rmtree(path)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--remove", action="store_true", help="remove every installed version instead")
    if arguments.parse_args().remove:
        remove()
        return
    if sys.platform != "linux":
        raise SystemExit("The real SGLang runs on Linux only; the other parts of the tests do without it.")
    print(f"The real SGLang stands in {install().environment}")


if __name__ == "__main__":
    main()
