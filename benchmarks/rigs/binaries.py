"""The two Go programs of the rig, built when their sources are newer."""

import subprocess
from pathlib import Path

from benchmarks.rigs import compiler

FOLDER = Path(__file__).resolve().parent.parent
LOADGEN = FOLDER / "bin" / "loadgen"
STUB = FOLDER / "bin" / "stub"


def build() -> None:
    """Raises compiler.NoCompiler, or CalledProcessError with the compiler's words on stderr."""
    for binary in (LOADGEN, STUB):
        sources = FOLDER / binary.name
        newest = max(file.stat().st_mtime for file in [*sources.glob("*.go"), sources / "go.mod"])
        if binary.exists() and binary.stat().st_mtime > newest:
            continue
        go = compiler.folder() / "go"
        subprocess.run([go, "build", "-trimpath", "-o", str(binary), "."], cwd=sources, check=True)
