"""Runs programs: quiet when they do well, with their last words when they don't."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from toolchain.kubernetes.failures import CommandFailed


def run(
    *words: str | Path,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    seconds: float | None = None,
) -> str:
    """The program's standard output. `environment` is added to ours. Raises CommandFailed."""
    line = [str(word) for word in words]
    try:
        done = subprocess.run(
            line,
            input=stdin or "",
            capture_output=True,
            text=True,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(line, 124, f"no end within {seconds:g} s") from None
    except FileNotFoundError:
        raise CommandFailed(line, 127, f"there is no program `{line[0]}` on this machine") from None
    if done.returncode:
        raise CommandFailed(line, done.returncode, done.stdout + done.stderr)
    return done.stdout


def succeeds(*words: str | Path, environment: Mapping[str, str] | None = None, seconds: float = 60) -> bool:
    try:
        run(*words, environment=environment, seconds=seconds)
    except CommandFailed:
        return False
    return True


def pipe(first: list[str | Path], second: list[str | Path], *, environment: Mapping[str, str]) -> str:
    """`first | second`: what the second one printed. Raises CommandFailed for whichever failed."""
    left, right = ([str(word) for word in words] for words in (first, second))
    surroundings = {**os.environ, **environment}
    with subprocess.Popen(left, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as source:
        assert source.stdout is not None
        assert source.stderr is not None
        done = subprocess.run(right, stdin=source.stdout, capture_output=True, text=True, env=surroundings)
        source.stdout.close()
        complaint = _text(source.stderr)
    if source.returncode and not done.returncode:
        raise CommandFailed(left, source.returncode, complaint)
    if done.returncode:
        raise CommandFailed(right, done.returncode, done.stdout + done.stderr)
    return done.stdout


def _text(stream: IO[bytes]) -> str:
    return stream.read().decode(errors="replace")
