"""A process that renders very long conversations, so that the one that serves keeps its interpreter.

It is `python -m rolloutfleet_proxy.tokens.render_process`. Both pipes carry frames: 4 bytes of length, then msgpack.
The first frame says which model; each further one asks for a render and gets one frame back. The process ends when its
input does, so it never outlives its parent, and when nothing was asked for some minutes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
from array import array
from threading import Lock
from typing import IO, Literal

import msgspec

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.telemetry.log_setup import helpers_environment, helpers_log
from rolloutfleet_proxy.tokens.loading import load
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import ChatFormat

_IDLE_SECONDS = 300.0
_ATTEMPTS = 2
_LENGTH = struct.Struct("<I")


class ModelSource(msgspec.Struct, frozen=True):
    """What `loading.load` needs to make the same chat format again."""

    source: str
    model: str | None = None
    """The name that engines call it by."""
    renderer: str | None = None
    thinking_retention: Literal["all", "tool_cycle", "template"] = "all"
    download_to: str | None = None
    cache_bytes: int = 16 << 20

    def load(self, *, token: str | None = None) -> ChatFormat:
        """Raises ModelUnreadable. `token` is the hub's; a model that was fetched before needs none."""
        return load(**msgspec.structs.asdict(self), token=token)


class RenderProcessFailed(Exception):
    """The helper process died, again after a restart."""


class _Ask(msgspec.Struct, omit_defaults=True):
    messages: list[Message]
    args: TemplateArgs
    bridge: tuple[list[int], list[int]] | None = None
    """Tail and output of the turn to extend; None asks for a full render."""


class _Answer(msgspec.Struct, omit_defaults=True):
    ids: bytes | None = None
    """Token ids as int32; None where the format can't extend the turn."""
    refused: str | None = None
    """What was wrong with the messages."""
    param: str | None = None
    """And where (`Unrenderable.param`)."""


class RenderProcess:
    """`render.Renders` in a helper process, started when first asked, and again when it has ended."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._stopped = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def extension(
        self, tail: list[int], output: list[int], messages: list[Message], args: TemplateArgs
    ) -> array[int] | None:
        return self._ask(_Ask(messages, args, (tail, output)))

    def full(self, messages: list[Message], args: TemplateArgs) -> array[int]:
        ids = self._ask(_Ask(messages, args))
        if ids is None:
            raise RenderProcessFailed("a full render came back empty")
        return ids

    def stop(self) -> None:
        """End the process; what is being asked fails. May be called in any thread."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.terminate()
        with self._lock:
            if self._process is not None:
                self._discard(self._process)

    def _ask(self, ask: _Ask) -> array[int] | None:
        frame = msgspec.msgpack.encode(ask)
        with self._lock:
            for _ in range(_ATTEMPTS):
                if self._stopped:
                    raise RenderProcessFailed("the helper process was stopped")
                process = self._running()
                try:
                    _write(process.stdin, frame)
                    answer = _read(process.stdout)
                except OSError:
                    answer = None
                if answer is not None:
                    return _ids_of(msgspec.msgpack.decode(answer, type=_Answer))
                self._discard(process)
        raise RenderProcessFailed("the helper process died, and again after a restart")

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            if process is not None:
                self._discard(process)
            process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=helpers_environment(),
            )
            self._process = process
            # If it died at once, reading its answer will show that.
            with contextlib.suppress(OSError):
                _write(process.stdin, msgspec.msgpack.encode(self._source))
        return process

    def _discard(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


def _ids_of(answer: _Answer) -> array[int] | None:
    if answer.refused is not None:
        raise Unrenderable(answer.refused, param=answer.param)
    return None if answer.ids is None else array("i", answer.ids)


def _write(pipe: IO[bytes] | None, frame: bytes) -> None:
    assert pipe is not None
    data = memoryview(_LENGTH.pack(len(frame)) + frame)
    while data:
        data = data[pipe.write(data) :]


def _read(pipe: IO[bytes] | None) -> bytes | None:
    """The next frame; None where the pipe has ended."""
    assert pipe is not None
    head = _read_exactly(pipe, _LENGTH.size)
    return None if head is None else _read_exactly(pipe, *_LENGTH.unpack(head))


def _read_exactly(pipe: IO[bytes], size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        more = pipe.read(size - len(data))
        if not more:
            return None
        data += more
    return bytes(data)


def _answer(chat_format: ChatFormat, ask: _Ask) -> _Answer:
    try:
        if ask.bridge is None:
            ids: array[int] | None = chat_format.full(ask.messages, ask.args)
        else:
            ids = chat_format.extension(*ask.bridge, ask.messages, ask.args)
    except Unrenderable as error:
        return _Answer(refused=str(error), param=error.param)
    return _Answer(ids=None if ids is None else ids.tobytes())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    # What some library prints must not come between the frames.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asks = os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    source = _read(asks)
    if source is None:
        return
    chat_format = msgspec.msgpack.decode(source, type=ModelSource).load()
    while select.select([asks], [], [], _IDLE_SECONDS)[0]:
        frame = _read(asks)
        if frame is None:
            return
        _write(answers, msgspec.msgpack.encode(_answer(chat_format, msgspec.msgpack.decode(frame, type=_Ask))))


if __name__ == "__main__":
    with helpers_log():
        main()
