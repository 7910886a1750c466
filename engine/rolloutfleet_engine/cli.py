"""The command `rolloutfleet-engine`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from rolloutfleet_engine.cues import Cue, parse_cues, read_cues
from rolloutfleet_engine.faults import KINDS, Fault
from rolloutfleet_engine.grammar import BACKENDS
from rolloutfleet_engine.model import model_path
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.script import LoopOptions
from rolloutfleet_engine.server import Server, create_engine

T = TypeVar("T")

DESCRIPTION = """\
A simulated SGLang engine: it answers /generate like SGLang 0.5.23, with made-up tokens.

It needs no GPU and no download. It reads the prompt's tool declarations and writes reasoning, tool calls that fit
them, and final answers; the same seed and prompt give the same tokens. A share of its tokens is replaced by two others
with the same text, so that code that tokenises a text again gets other ids.
"""

EPILOG = """\
examples:
  rolloutfleet-engine --port 30000
  rolloutfleet-engine --port 30000 --latency 0.5 --jitter 0.1 --token-latency 0.01
  rolloutfleet-engine --port 30000 --faults '[{"kind": "nan"}, {"kind": "slow", "count": 3, "seconds": 2}]'

while it runs:
  curl localhost:30000/counters                                   how many calls arrived, and how they ended
  curl localhost:30000/log                                        the last calls with every token
  curl localhost:30000/faults -d '{"kind": "error_500"}'          the next call fails; DELETE empties the queue
"""

GRAMMAR_BACKEND = "refuse the grammars that SGLang refuses with this backend (default: %(default)s)"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="rolloutfleet-engine",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = EngineOptions()
    add = made.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=30000, help="port to listen on, 0 for a free one (default: %(default)s)")
    add("--model-path", type=Path, default=model_path(), help="directory with tokenizer.json (default: a small Qwen3)")
    add("--served-model-name", help="name to answer under (default: the model path)")
    add("--seed", type=int, default=defaults.seed, help="determines every token, with prompt and sampling seed")
    add("--latency", type=seconds, default=0.0, help="seconds to the first token (default: %(default)s)")
    add("--token-latency", type=seconds, default=0.0, help="seconds from token to token (default: %(default)s)")
    add("--jitter", type=share, default=0.0, help="share by which latencies vary, 0 to 1 (default: %(default)s)")
    add("--noncanonical", type=share, default=0.3, help="share of tokens written as two, 0 to 1 (default: %(default)s)")
    add(
        "--tool-rounds", type=int, metavar="N", help="answers that call a tool before the last one (default: by chance)"
    )
    add("--last-call", type=json_object, metavar="JSON", help="the tool call of the last answer: {name, arguments}")
    add("--cues", type=cues, default=(), metavar="FILE|JSON", help="replies to prompts that hold a cue (see docs)")
    add("--stream-interval", type=int, default=1, help="tokens per event of a stream (default: %(default)s)")
    add("--max-context", type=int, help="tokens of prompt and output (default: the model's)")
    add("--weight-version", default=defaults.weight_version, help="the first weights' version (default: %(default)s)")
    add("--log-size", type=int, default=defaults.log_size, help="ended calls kept for GET /log (default: %(default)s)")
    add("--grammar-backend", choices=BACKENDS, default=defaults.grammar_backend, help=GRAMMAR_BACKEND)
    add("--api-key", metavar="KEY", help="key required on every route except health checks (default: none)")
    add("--faults", type=faults, default=[], metavar="JSON", help=f"initial faults; kinds: {', '.join(KINDS)}")
    return made


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return value


def cues(text: str) -> tuple[Cue, ...]:
    try:
        return parse_cues(text.encode()) if text.startswith("[") else read_cues(Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def json_of(kind: type[T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


json_object = json_of(dict[str, Any])
faults = json_of(list[Fault])


def options_from(arguments: argparse.Namespace) -> EngineOptions:
    """Flags have the names of the options, but for those of the loop."""
    given = vars(arguments)
    named = {each.name: given[each.name] for each in fields(EngineOptions) if each.name in given}
    loop = LoopOptions(rounds=arguments.tool_rounds, last_call=arguments.last_call, cues=arguments.cues)
    return EngineOptions(loop=loop, **named)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    host, port = arguments.host, arguments.port

    def ready(port: int) -> None:
        print(f"rolloutfleet-engine ready on http://{host}:{port}", flush=True)

    try:
        app = create_engine(options_from(arguments), faults=arguments.faults)
        server = Server(app, host=host, port=port, ready=ready)
        uvloop.run(server.serve())
    except FileNotFoundError as error:
        sys.exit(f"rolloutfleet-engine: {error}")
    except SystemExit:
        # uvicorn ends so when it cannot listen, and says why in a log that is off.
        sys.exit(f"rolloutfleet-engine: cannot listen on {host}:{port}; is the port taken?")
    except KeyboardInterrupt:
        return
