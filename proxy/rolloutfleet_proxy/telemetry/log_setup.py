"""The log of a process, set up once: our events, `logging`, warnings and uncaught exceptions take the same form and the
same way out. A helper process logs as the process that started it does.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Literal

from rolloutfleet_proxy.telemetry import events, logger
from rolloutfleet_proxy.telemetry.events import Event, LogDropped
from rolloutfleet_proxy.telemetry.log_lines import FORMS, Form, message_line
from rolloutfleet_proxy.telemetry.log_output import Output

OURS: Final = ("rolloutfleet", "rolloutfleet_proxy")
HELPERS_LOG: Final = "ROLLOUTFLEET_HELPERS_LOG"
"""In a helper's environment: how its log is to be set up, as JSON."""


_settings: dict[str, Any] = {"format": "plain", "level": "info", "ordinal": 0}
"""Those of this process, which helpers get too."""


class EventLog(Output):
    """Events as lines of an output."""

    def __init__(self, form: Form, level: int, descriptor: int) -> None:
        super().__init__(
            descriptor,
            dropped_line=lambda count: form.event(time.time(), logging.WARNING, LogDropped(lines=count)),
        )
        self._form = form
        self._level = level

    def event(self, level: int, event: Event) -> None:
        if level >= self._level:
            self.put(self._form.event(time.time(), level, event))


class _Handler(logging.Handler):
    """What is said through `logging`."""

    def __init__(self, form: Form, output: Output) -> None:
        super().__init__()
        self._form = form
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._output.put(message_line(self._form, record))
        except Exception:
            self.handleError(record)


def set_up(*, format: Literal["plain", "json"], level: str, ordinal: int) -> Output:
    """From now on all is logged to standard error. Close what is returned at the end."""
    _settings.update(format=format, level=level, ordinal=ordinal)
    form = FORMS[format](pid=os.getpid(), ordinal=ordinal)
    lowest = logging.getLevelNamesMapping()[level.upper()]
    output = EventLog(form, lowest, sys.stderr.fileno())
    logging.basicConfig(handlers=[_Handler(form, output)], force=True, level=max(lowest, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(lowest)
    logging.captureWarnings(True)
    sys.excepthook = _note_uncaught
    sys.unraisablehook = _note_unraisable
    threading.excepthook = _note_thread
    events.direct(output)
    return output


def helpers_environment() -> dict[str, str]:
    """The environment of a process that helps this one."""
    return os.environ | {HELPERS_LOG: json.dumps(_settings)}


@contextlib.contextmanager
def helpers_log() -> Iterator[None]:
    """The log of such a process, until the block ends."""
    output = set_up(**_settings | json.loads(os.environ.get(HELPERS_LOG, "{}")))
    try:
        yield
    except Exception as error:
        logger.critical("a helper process ends by an exception", exc_info=error)
        raise SystemExit(1) from None
    finally:
        output.close()


def _note_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, KeyboardInterrupt):
        logger.critical("the process ends by an exception", exc_info=error)


def _note_thread(uncaught: threading.ExceptHookArgs) -> None:
    name = None if uncaught.thread is None else uncaught.thread.name
    logger.critical("the thread %s ends by an exception", name, exc_info=uncaught.exc_value)


def _note_unraisable(unraisable: Any) -> None:
    # What it happened in may have a conversation in its description. In a text of great depth the collector may come at
    # the recursion limit, where nothing more can be called.
    try:  # noqa: SIM105 (`suppress` is a call more)
        logger.error("an exception in a place that can't raise", exc_info=unraisable.exc_value)
    except RecursionError:
        pass
