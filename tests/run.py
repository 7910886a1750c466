"""One part of the tests: `python -m tests.run PART [arguments of pytest]`, which is what `make test…` calls.

What it lacks is said before anything runs. Exits with 1 where a test fails, or where the arguments select none.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from tests import tools
from tests.parts import PARTS, Part, part_of
from tests.paths import ROOT

NONE_SELECTED = 5
"""pytest's exit status."""
PYTEST = [sys.executable, "-m", "pytest"]


def main() -> None:
    name, *words = sys.argv[1:] or [""]
    if name not in PARTS:
        sys.exit(f"usage: python -m tests.run {{{','.join(PARTS)}}} [arguments of pytest]")
    try:
        sys.exit(run(PARTS[name], words))
    except KeyboardInterrupt:
        sys.exit(130)


def run(part: Part, words: Sequence[str]) -> int:
    """Run it, or what `words` select of it; the exit status."""
    lacking = [line for name in (part.name, *part.beside[:1]) for line in tools.missing(name)]
    if lacking:
        print(f"make {part.target} lacks:", *lacking, sep="\n  ", file=sys.stderr)
        return 1
    paths = [word for word in words if (ROOT / word.partition("::")[0]).exists()]
    if strange := [path for path in paths if part_of(path) is not part]:
        return _elsewhere(part, words, Counter({found.name: 0 for path in strange if (found := part_of(path))}))
    refused = tools.refused(part.name)
    left_out = [f"--deselect={test}" for test in refused]
    tests = [*PYTEST, *part.options(), *left_out, *words, *([] if paths else [part.folder])]
    if words:
        status = _ended(tests)
        if status == NONE_SELECTED:
            return _elsewhere(part, words, _holders(words, paths))
    else:
        status = _together(part, tests)
    for test, why in refused.items():
        print(f"NOT RUN: {test}: {why}")
    return min(status, 1) if status >= 0 else 1


def _together(part: Part, tests: Sequence[str]) -> int:
    """Run all of a part: one command shown as it runs, what the other says at its end. The first status that is bad."""
    commands = [tests, *([[sys.executable, "-m", *part.beside]] if part.beside else [])]
    shown, *others = commands if part.shows_tests else reversed(commands)
    with tempfile.TemporaryFile("w+") as said:
        beside = [subprocess.Popen(other, cwd=ROOT, stdout=said, stderr=said) for other in others]
        try:
            status = _ended(shown)
        finally:
            statuses = [wait_for(process) for process in beside]
        said.seek(0)
        print(said.read(), end="", flush=True)
    return next(filter(None, [status, *statuses]), 0)


def _ended(command: Sequence[str]) -> int:
    """Run a command; return its status."""
    return wait_for(subprocess.Popen(command, cwd=ROOT))


def wait_for(process: "subprocess.Popen[bytes]") -> int:
    """Return the status of a process. Ctrl-C reaches it too, and it ends what it has started before this goes on."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def _holders(words: Sequence[str], paths: Sequence[str]) -> Counter[str]:
    """How many tests of each part the arguments would select."""
    if paths:
        return Counter()
    command = [*PYTEST, "--collect-only", "-q", "--no-header", *words, "tests"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = (part_of(line) for line in said.splitlines() if "::" in line)
    return Counter(part.name for part in found if part is not None)


def _elsewhere(part: Part, words: Sequence[str], holders: Counter[str]) -> int:
    """Say that nothing was selected, and which target has what was asked for."""
    asked = " ".join(words)
    print(f"ARGS='{asked}' select no test of {part.folder}.", file=sys.stderr)
    for name, count in holders.items():
        number = f" ({count} tests)" if count else ""
        print(f"  make {PARTS[name].target} ARGS='{asked}'{number}", file=sys.stderr)
    if not holders:
        print("  No other part has any either.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
