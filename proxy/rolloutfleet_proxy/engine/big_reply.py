"""Very large replies are read in a process of their own (promise 8).

Parsing holds the interpreter: 36 MB of JSON stop a process for a second and more, threads and all. So the bytes of
such a reply go straight into `python -m rolloutfleet_proxy.engine.big_reply`, and what comes back is the evidence,
packed: a few bytes a token. It lives for one reply; they are rare, and a process that stays would keep the memory.

In:  a length of 4 bytes, that many bytes of msgpack (what is expected), then the reply's JSON.
Out: msgpack, one of `_Outcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from array import array
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct

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

_LENGTH_BYTES = 4


_AS_THEY_ARE = ("finish_reason", "prompt_tokens", "matched", "cached_tokens", "top_logprobs", "spans")


class _TakenReply(Struct):
    output_ids: bytes
    logprobs: bytes
    finish_reason: Finish
    prompt_tokens: int
    matched: int | str | None
    cached_tokens: int | None
    top_logprobs: list[list[tuple[float, int]]] | None
    spans: tuple[Span, ...] | None


_Outcome = _TakenReply | tuple[int | str, str]
"""Else status and message of `AbortedWithError`, or reason and message of `Refused`."""
_decode_outcome: msgspec.msgpack.Decoder[_Outcome] = msgspec.msgpack.Decoder(_Outcome)


async def read(reply: AsyncIterator[bytes], expected: Expected) -> Evidence:
    """Check a reply in a process of its own. Raises Refused, AbortedWithError, or what `reply` raises."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rolloutfleet_proxy.engine.big_reply",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=helpers_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(_framed(expected))
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


def _framed(expected: Expected) -> bytes:
    content = msgspec.msgpack.encode(expected)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def _evidence(outcome: _Outcome) -> Evidence:
    if isinstance(outcome, tuple):
        what, message = outcome
        raise AbortedWithError(what, message) if isinstance(what, int) else Refused(what, message)
    return Evidence(
        array("i", outcome.output_ids),
        array("f", outcome.logprobs),
        **{name: getattr(outcome, name) for name in _AS_THEY_ARE},
    )


def _outcome(expected: Expected, body: bytes) -> _Outcome:
    try:
        evidence = check(decode(body), expected)
    except Refused as error:
        return error.reason, error.message
    except AbortedWithError as error:
        return error.status, error.message
    as_they_are = {name: getattr(evidence, name) for name in _AS_THEY_ARE}
    return _TakenReply(evidence.output_ids.tobytes(), evidence.logprobs.tobytes(), **as_they_are)


def main() -> None:
    """The process's work."""
    source = sys.stdin.buffer
    length = int.from_bytes(source.read(_LENGTH_BYTES), "big")
    expected = msgspec.msgpack.decode(source.read(length), type=Expected)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_outcome(expected, source.read())))


if __name__ == "__main__":
    with helpers_log():
        main()
