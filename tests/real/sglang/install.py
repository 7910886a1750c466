"""Installs the real SGLang that the tests in tests/real judge by: `make sglang`.

It stands outside the clone, in the user's cache, because it takes about 10 GB: every clone whose lock, driver stand-in
and model script are the same shares one. A half-made one has no stamp and is made anew.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SGLANG_VERSION = "0.5.23"
PYTHON_VERSIONS = ">=3.11,<3.13"  # newer ones have no wheels for all that SGLang pins

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
LOCK = HERE / "requirements.lock"
DRIVER_SOURCE = HERE / "libcuda.c"
MODEL_SCRIPT = HERE / "build_model.py"
SHIPPED_MODEL = REPOSITORY / "engine" / "rolloutfleet_engine" / "model"
WEIGHT_SEEDS = {"first": 1, "second": 2}


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the parts of the real engine stand."""

    environment: Path
    models: Path

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def driver(self) -> Path:
        """The folder with the stand-in for libcuda.so.1, for LD_LIBRARY_PATH."""
        return self.environment / "driver"

    def model(self, name: str) -> Path:
        return self.models / name


def cache_root() -> Path:
    if chosen := os.environ.get("ROLLOUTFLEET_CACHE"):
        return Path(chosen).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user_cache).expanduser() / "rolloutfleet"


def digest_of(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def places() -> Installed:
    environment = cache_root() / f"sglang-{SGLANG_VERSION}-{digest_of(LOCK, DRIVER_SOURCE)}"
    shipped = sorted(path for path in SHIPPED_MODEL.iterdir() if path.is_file())
    models = cache_root() / f"tiny-qwen3-{digest_of(LOCK, MODEL_SCRIPT, *shipped)}"
    return Installed(environment=environment, models=models)


def find() -> Installed | None:
    """The installed engine, or None where any part of it is missing."""
    installed = places()
    return installed if environment_is_whole(installed) and installed.models.is_dir() else None


def environment_is_whole(installed: Installed) -> bool:
    # The interpreter is asked too: it breaks when the Python below it is removed or upgraded away.
    return stamp_of(installed).is_file() and answers(installed.python)


def stamp_of(installed: Installed) -> Path:
    return installed.environment / ".complete"


def answers(python: Path) -> bool:
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """One installer at a time; a second one waits and then finds everything made."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, stdin=subprocess.DEVNULL)


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
        raise SystemExit("The real SGLang runs on Linux only; `make test-fast` does without it.")
    print(f"The real SGLang stands in {install().environment}")


if __name__ == "__main__":
    main()
