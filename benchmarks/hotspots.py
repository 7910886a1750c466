"""Where a proxy's CPU goes: py-spy on the whole process tree, under the load of the rigs.

    python -m benchmarks.hotspots --in-flight 32              # engine at once, as capture_vs_gateway
    python -m benchmarks.hotspots --in-flight 1600 --latency 0.5
    python -m benchmarks.hotspots --stream                    # chunks 10 ms apart, as stream_chunk_cpu_vs_gateway
    python -m benchmarks.hotspots --gil                       # only what holds the interpreter

py-spy samples from outside, so the proxy runs as it is. It is taken from the PATH, or run by `uvx`, which fetches it.
A share is of all samples in which some thread ran; with `--gil`, of those in which one held the interpreter.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.rigs import binaries
from benchmarks.rigs.bench import REPLY_TOKENS, Bench, bench, say
from benchmarks.rigs.compared import STREAMED_TOKENS, TOKEN_SECONDS
from benchmarks.rigs.load import Shape
from benchmarks.rigs.plan import Plan

RATE = 200
"""Samples a second."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    binaries.build()
    plan = Plan(pairs=1, warmup=options.warmup, window=options.seconds)
    with bench(plan, reply_tokens=STREAMED_TOKENS if options.stream else REPLY_TOKENS) as on:
        on.stub.set_latency(options.latency)
        on.stub.set_token_latency(TOKEN_SECONDS)
        stacks = _record(on, options)
    for title, counts in (
        ("thread", by_thread(stacks)),
        ("itself", by_leaf(stacks)),
        ("with all it calls", by_frame(stacks)),
    ):
        _show(title, counts, total=sum(stacks.values()), most=options.most)
    return 0


def _record(on: Bench, options: argparse.Namespace) -> Counter[str]:
    proxy = on.proxy()
    seconds = int(options.seconds + options.warmup)
    line = [
        *(*_py_spy(), "record", "--pid", str(proxy.process.pid), "--subprocesses", "--threads", "--function"),
        *("--format", "raw", "--rate", str(RATE), "--duration", str(seconds), "--output", str(options.output)),
        *(["--gil"] if options.gil else []),
        *(["--native"] if options.native else []),
    ]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as spy:
        shape = Shape(in_flight=options.in_flight, warmup=options.warmup, window=options.seconds, stream=options.stream)
        on.load(proxy.target, shape, watched={"proxy": proxy.process.pid})
        _, said = spy.communicate(timeout=60)
    if spy.returncode != 0:
        raise SystemExit(f"py-spy failed: {said}")
    say(f"  folded stacks, for any flame graph: {options.output}")
    return read_folded(options.output.read_text(encoding="utf-8").splitlines())


def _py_spy() -> list[str]:
    if found := shutil.which("py-spy"):
        return [found]
    beside = Path(sys.executable).parent / "uvx"
    return [str(beside) if beside.exists() else "uvx", "--quiet", "py-spy"]


def read_folded(lines: Iterable[str]) -> Counter[str]:
    """Samples by stack, outermost frame first: `process;thread;frame;frame 17`."""
    stacks: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        stacks[stack] += int(count)
    return stacks


def _frames(stack: str) -> list[str]:
    """The frames without process and thread, which are no functions."""
    return [frame for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]


def by_leaf(stacks: Counter[str]) -> Counter[str]:
    """Samples by the function that ran."""
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        if frames := _frames(stack):
            counts[frames[-1]] += count
    return counts


def by_frame(stacks: Counter[str]) -> Counter[str]:
    """Samples by each function on the stack, once a sample however deep it recurs."""
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        for frame in set(_frames(stack)):
            counts[frame] += count
    return counts


def by_thread(stacks: Counter[str]) -> Counter[str]:
    """Samples by thread."""
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        thread = re.search(r"thread \([^)]*\)(?:: [^;]*)?", stack)
        counts[thread[0] if thread else "?"] += count
    return counts


def _show(title: str, counts: Counter[str], *, total: int, most: int) -> None:
    print(f"\n   share  {title}")
    for name, count in counts.most_common(most):
        print(f"{count / max(total, 1):8.1%}  {name}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hotspots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--in-flight", type=int, default=32, help="agents, each with one call in flight (32)")
    parser.add_argument("--latency", type=float, default=0.0, metavar="S", help="the engine's (0: at once)")
    parser.add_argument("--stream", action="store_true", help="replies of 250 tokens, streamed, 10 ms apart")
    parser.add_argument("--warmup", type=float, default=3.0, metavar="S", help="seconds before the CPU is read (3)")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="how long (15)")
    parser.add_argument("--gil", action="store_true", help="only threads that hold the interpreter")
    parser.add_argument("--native", action="store_true", help="frames of C and Rust too (slower)")
    parser.add_argument("--most", type=int, default=40, help="rows of each table (40)")
    parser.add_argument(
        "--output", type=Path, default=binaries.FOLDER / "bin" / "profile.folded", help="the folded stacks"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
