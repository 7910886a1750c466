"""The log of a process, set up once: our events, `logging`, and warnings take the same form and the same way out."""

import logging
import os
import sys
import time

from rolloutfleet.settings import LogSettings
from rolloutfleet_proxy.logs import events
from rolloutfleet_proxy.logs.events import Event, LogDropped
from rolloutfleet_proxy.logs.lines import FORMS, Form, message_line
from rolloutfleet_proxy.logs.output import Output

OURS = ("rolloutfleet", "rolloutfleet_proxy")


class EventLog:
    """Events as lines of an output."""

    def __init__(self, form: Form, output: Output, level: int) -> None:
        self._form = form
        self._output = output
        self._level = level

    @property
    def dropped(self) -> int:
        return self._output.dropped

    @property
    def waiting(self) -> int:
        return self._output.waiting

    def event(self, level: int, event: Event) -> None:
        if level >= self._level:
            self._output.put(self._form.event(time.time(), level, event))


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


def set_up(settings: LogSettings, *, ordinal: int, descriptor: int | None = None) -> Output:
    """From now on all is logged to `descriptor`, standard error unless given. Close what is returned at the end."""
    form = FORMS[settings.format](pid=os.getpid(), ordinal=ordinal)
    output = Output(
        sys.stderr.fileno() if descriptor is None else descriptor,
        dropped_line=lambda count: form.event(time.time(), logging.WARNING, LogDropped(lines=count)),
    )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.basicConfig(handlers=[_Handler(form, output)], force=True, level=max(level, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)
    events.direct(EventLog(form, output, level))
    return output
