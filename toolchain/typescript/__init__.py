"""The TypeScript compiler, which checks the types of the page's modules; fetched once for all clones, by npm.

`package-lock.json` pins it by hash, and names no registry: that is npm's own setting, so it is made anew by
`npm install --package-lock-only --omit-lockfile-registry-resolved`.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from toolchain.cache import alone, appearing, cache_root, digest_of

FOLDER: Final = Path(__file__).parent
PINNED: Final = ("package.json", "package-lock.json")
PROJECT: Final = FOLDER / "tsconfig.json"


class NoCompiler(Exception):
    """It could not be downloaded; the message says why."""


def compiler() -> Path:
    """`tsc`, fetched where it is not there yet. Raises NoCompiler."""
    folder = cache_root() / f"typescript-{digest_of(*(FOLDER / name for name in PINNED))}"
    with alone(cache_root()):
        if not folder.exists():
            _fetch(folder)
    return folder / "node_modules" / ".bin" / "tsc"


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    assert npm is not None, "npm is not installed: apt-get install npm (.ci/run installs it)"
    with appearing(folder) as unfinished:
        for name in PINNED:
            shutil.copy(FOLDER / name, unfinished)
        done = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=unfinished,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "EINTEGRITY" not in done.stderr, done.stderr
        if done.returncode:
            raise NoCompiler(f"npm could not fetch TypeScript: {done.stderr.strip()[-2000:]}")


def checked(*words: str) -> str:
    """What it says of the modules' types: nothing, where all is well. Raises NoCompiler."""
    done = subprocess.run(
        [compiler(), "--project", PROJECT, "--pretty", "false", *words], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr
