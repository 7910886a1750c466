"""The two Go programs of the rig, built when their sources are newer."""

import subprocess
from pathlib import Path

from toolchain import go

FOLDER = Path(__file__).resolve().parent.parent
LOADGEN = FOLDER / "bin" / "loadgen"
STUB = FOLDER / "bin" / "stub"


def build() -> None:
    """Raises go.NoCompiler, or CalledProcessError with the compiler's words on stderr."""
    for binary in (LOADGEN, STUB):
        sources = FOLDER / binary.name
        newest = max(file.stat().st_mtime for file in [*sources.glob("*.go"), sources / "go.mod"])
        if binary.exists() and binary.stat().st_mtime > newest:
            continue
        subprocess.run([go.folder() / "go", "build", "-trimpath", "-o", str(binary), "."], cwd=sources, check=True)
