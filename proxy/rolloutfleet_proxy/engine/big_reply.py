"""Very large replies are read in a process of their own (promise 8).

Parsing holds the interpreter: 36 MB of JSON stop a process for a second and more, threads and all. So the bytes of
such a reply go straight into `python -m rolloutfleet_proxy.engine.big_reply`, and what comes back is the evidence,
packed: a few bytes a token. It lives for one reply; they are rare, and a process that stays would keep the memory.

As its argument it gets the JSON of what is expected, as its input the reply's; its output is msgpack, of an `_Outcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from array import array
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from rolloutfleet_proxy.engine.evidence import (
    AbortedWithError,
    Evidence,
    Expected,
    Finish,
    Refused,
    Span,
    check,
    decode,
)
from rolloutfleet_proxy.telemetry.log_setup import helpers_environment, helpers_log


class _TakenReply(Struct):
    """`Evidence`, its arrays as bytes."""

    output_ids: bytes
    logprobs: bytes
    finish_reason: Finish
    prompt_tokens: int
    matched: int | str | None
    cached_tokens: int | None
    top_logprobs: list[list[tuple[float, int]]] | None
    spans: tuple[Span, ...] | None
    version_differs: bool


_Outcome = _TakenReply | tuple[int | str, str]
"""Else status and message of `AbortedWithError`, or reason and message of `Refused`."""
_decode_outcome: msgspec.msgpack.Decoder[_Outcome] = msgspec.msgpack.Decoder(_Outcome)


async def read(reply: AsyncIterator[bytes], expected: Expected) -> Evidence:
    """Check a reply in a process of its own. Raises Refused, AbortedWithError, or what `reply` raises."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rolloutfleet_proxy.engine.big_reply",
        msgspec.json.encode(expected).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=helpers_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            async for data in reply:
                process.stdin.write(data)
                await process.stdin.drain()
            process.stdin.close()
        outcome = await process.stdout.read()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the reader of a big reply ended with {process.returncode}")
    return _evidence(_decode_outcome.decode(outcome))


def _evidence(outcome: _Outcome) -> Evidence:
    if isinstance(outcome, tuple):
        what, message = outcome
        raise AbortedWithError(what, message) if isinstance(what, int) else Refused(what, message)
    arrays = {"output_ids": array("i", outcome.output_ids), "logprobs": array("f", outcome.logprobs)}
    return Evidence(**asdict(outcome) | arrays)


def _outcome(expected: Expected, body: bytes) -> _Outcome:
    try:
        evidence = check(decode(body), expected)
    except Refused as error:
        return error.reason, error.message
    except AbortedWithError as error:
        return error.status, error.message
    packed = {"output_ids": evidence.output_ids.tobytes(), "logprobs": evidence.logprobs.tobytes()}
    return _TakenReply(**asdict(evidence) | packed)


def main() -> None:
    """The process's work."""
    expected = msgspec.json.decode(sys.argv[1], type=Expected)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_outcome(expected, sys.stdin.buffer.read())))


if __name__ == "__main__":
    with helpers_log():
        main()
