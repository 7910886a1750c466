"""Running an agent once: a function, in a thread of its own; a coroutine function; or a command."""

import asyncio
import contextlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rolloutfleet.fleet.rollouts import launcher
from rolloutfleet.fleet.sessions import Handle
from rolloutfleet.fleet.whereabouts import KEY_FILE_VARIABLE
from rolloutfleet.programs import Program
from rolloutfleet.threads import in_thread

KEPT_OUTPUT: Final = 4096
"""Bytes of a command's last output that are kept, to say why it failed."""
ENDING: Final = launcher.GRACE + 5.0
"""Seconds that a command has to end, killed."""
LAST_OUTPUT: Final = 1.0
"""Seconds in which the last output of a command that has ended is read."""
TASK_VARIABLE: Final = "ROLLOUTFLEET_TASK"
TASK_FILE_VARIABLE: Final = "ROLLOUTFLEET_TASK_FILE"
LARGEST_VARIABLE: Final = 100 * 2**10
"""Bytes of a task in `TASK_VARIABLE`. Linux takes 128 KiB for a variable."""


class AgentError(Exception):
    """A command ended with another status than 0, or a function with what is no Exception, as SystemExit."""


class NotStarted(AgentError):
    """A command that could not be started."""


@dataclass(frozen=True, slots=True)
class Command:
    """An agent that is a program. It takes its session from its environment (`Session.environ`); the rest of that is
    the trainer's, without the admin key's file.

    `line` is a list of arguments, in which `{task}`, or `{NAME}` for a field of a task that is a dict, stand for the
    task; or a line for `sh`. In either case ROLLOUTFLEET_TASK has the task, as it is if it is a text, else as JSON, and
    so has the file that ROLLOUTFLEET_TASK_FILE names: it alone where the task is above 100 KiB, or has a NUL.
    """

    line: str | Sequence[str]
    for_: Program = "openai"
    model: str = "policy"
    cwd: str | Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, task: Any) -> list[str]:
        """The arguments for a task, the program first."""
        if isinstance(self.line, str):
            return ["/bin/sh", "-c", self.line]
        fields = task.items() if isinstance(task, Mapping) else ()
        named = {"task": _text(task), **{str(name): _text(value) for name, value in fields}}
        # Each is replaced once: what is put in may hold braces of its own.
        return [re.sub(r"\{([^{}]*)\}", lambda found: named.get(found[1], found[0]), each) for each in self.line]

    def environment(self, session: Handle, task: Any, *, home: Path) -> dict[str, str]:
        """The environment for a task, whose file is written into the folder `home`."""
        content, file = os.fsencode(_text(task)), home / "task"
        file.write_bytes(content)
        fits = len(content) <= LARGEST_VARIABLE and b"\0" not in content
        return {
            **{name: value for name, value in os.environ.items() if name not in (KEY_FILE_VARIABLE, TASK_VARIABLE)},
            **session.environ(for_=self.for_, model=self.model, home=home),
            **({TASK_VARIABLE: _text(task)} if fits else {}),
            TASK_FILE_VARIABLE: str(file),
            **self.env,
        }

    async def __call__(self, session: Handle, task: Any) -> None:
        """Run it. Raises AgentError where it fails. Cancelled, it has ended, with all in its process group."""
        arguments = self.arguments(task)
        with tempfile.TemporaryDirectory(prefix="rolloutfleet-agent-", ignore_cleanup_errors=True) as home:
            await _run(arguments, self.environment(session, task, home=Path(home)), self.cwd)


Agent = Callable[[Any, Any], Any]
"""`agent(session, task)`, as a `Command` is, too. A number that a function returns is the reward."""


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, in a thread of its own, or a coroutine function. SystemExit and the like are raised as
    AgentError."""
    if is_async(function):
        try:
            return await function(*arguments)
        except (SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _harmless(error) from None

    def harmlessly() -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            raise _harmless(error)  # noqa: B904 (it has its cause)

    result = await in_thread(harmlessly)
    if inspect.iscoroutine(result):
        result.close()
        raise AgentError("it returned a coroutine: hand over the coroutine function itself, or one that awaits it")
    return result


def _harmless(error: BaseException) -> Exception:
    """The error, or one in the place of those that would end the event loop, or say that its task was cancelled."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
        return error
    harmless = AgentError(repr(error))
    harmless.__cause__ = error
    return harmless


def is_async(function: Callable[..., Any]) -> bool:
    """True of coroutine functions, and of objects whose call is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class _Running(asyncio.SubprocessProtocol):
    """A command that runs. asyncio's own `Process` would have ended only with all that hold its output."""

    def __init__(self) -> None:
        self.output = bytearray()
        """The last of it."""
        self.read = asyncio.Event()
        """Set when nobody can write any more."""
        self.ended = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.output += data
        del self.output[:-KEPT_OUTPUT]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.read.set()

    def process_exited(self) -> None:
        self.ended.set()


async def _run(arguments: Sequence[str], environment: Mapping[str, str], cwd: str | Path | None) -> None:
    transport, running = await asyncio.get_running_loop().subprocess_exec(
        _Running,
        *(sys.executable, "-I", launcher.__file__, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        cwd=cwd,
    )
    try:
        await running.ended.wait()
        await _within(LAST_OUTPUT, running.read)  # what left the process group may keep it open
    finally:
        await asyncio.shield(_end(transport, running))
    status = transport.get_returncode()
    last_line = running.output.decode("utf-8", "replace").strip().rpartition("\n")[2]
    why = f": {last_line}" if last_line else ""
    if status == launcher.NOT_STARTED:
        raise NotStarted(f"{arguments[0]} could not be started{why}")
    if status:
        raise AgentError(f"{arguments[0]} ended with exit status {status}{why}")


async def _end(transport: asyncio.SubprocessTransport, running: _Running) -> None:
    stdin = transport.get_pipe_transport(0)
    assert stdin is not None
    stdin.close()
    await _within(ENDING, running.ended)
    transport.close()  # killed, if it still runs


async def _within(seconds: float, event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
