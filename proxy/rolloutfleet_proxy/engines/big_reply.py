"""Very large replies are read in a process of their own (promise 8).

Parsing holds the interpreter: 36 MB of JSON stop a process for a second and more, threads and all. So the bytes of
such a reply go straight into `python -m rolloutfleet_proxy.engines.big_reply`, and what comes back is the evidence,
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
from typing import Any

import msgspec
from msgspec import Struct

from rolloutfleet_proxy.engines.evidence import AbortedWithError, Evidence, Expected, Refused, Span, check, decode
from rolloutfleet_proxy.telemetry.log_setup import helpers_environment, helpers_log

_LENGTH_BYTES = 4


class _Taken(Struct, tag="taken"):
    output_ids: bytes
    logprobs: bytes
    rest: dict[str, Any]
    top_logprobs: list[list[tuple[float, int]]] | None
    spans: list[tuple[int, int, int]] | None


class _Refused(Struct, tag="refused"):
    reason: str
    message: str


class _Aborted(Struct, tag="aborted"):
    status: int
    message: str


_Outcome = _Taken | _Refused | _Aborted
_decode_outcome: msgspec.msgpack.Decoder[_Outcome] = msgspec.msgpack.Decoder(_Outcome)


async def read(reply: AsyncIterator[bytes], expected: Expected) -> Evidence:
    """Check a reply in a process of its own. Raises Refused, AbortedWithError, or what `reply` raises."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rolloutfleet_proxy.engines.big_reply",
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
    if isinstance(outcome, _Refused):
        raise Refused(outcome.reason, outcome.message)
    if isinstance(outcome, _Aborted):
        raise AbortedWithError(outcome.status, outcome.message)
    return Evidence(
        output_ids=array("i", outcome.output_ids),
        logprobs=array("f", outcome.logprobs),
        top_logprobs=outcome.top_logprobs,
        spans=None if outcome.spans is None else tuple(Span(*span) for span in outcome.spans),
        **outcome.rest,
    )


def _outcome(expected: Expected, body: bytes) -> _Outcome:
    try:
        evidence = check(decode(body), expected)
    except Refused as error:
        return _Refused(error.reason, error.message)
    except AbortedWithError as error:
        return _Aborted(error.status, error.message)
    spans = evidence.spans
    return _Taken(
        output_ids=evidence.output_ids.tobytes(),
        logprobs=evidence.logprobs.tobytes(),
        rest={
            "finish_reason": evidence.finish_reason,
            "prompt_tokens": evidence.prompt_tokens,
            "matched": evidence.matched,
            "cached_tokens": evidence.cached_tokens,
        },
        top_logprobs=evidence.top_logprobs,
        spans=None if spans is None else [(span.version, span.start, span.end) for span in spans],
    )


def main() -> None:
    """The process's work."""
    source = sys.stdin.buffer
    length = int.from_bytes(source.read(_LENGTH_BYTES), "big")
    expected = msgspec.msgpack.decode(source.read(length), type=Expected)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_outcome(expected, source.read())))


if __name__ == "__main__":
    with helpers_log():
        main()
