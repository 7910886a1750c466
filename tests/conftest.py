"""What all tests share."""

import gc
import os
import signal
import ssl
from functools import cache
from typing import Any

import pytest
from hypothesis import settings
from tests import logs, sleeps
from tests.counts import Counts, asked_for, report
from tests.durations import Durations, Meter
from tests.printing import said
from tests.scheduling import scheduler
from toolchain import harmony

COUNTED = pytest.StashKey[str | None]()
"""The file in which `tests.ci` wants the counts."""
STARTED = pytest.StashKey[int]()
"""The number of processes started before the test."""


def pytest_configure(config: pytest.Config) -> None:
    """Let gpt-oss find its vocabulary.

    And let no example of hypothesis fail by how long it takes, which depends on what else the machine does. All else is
    as in the profile in force: in CI, hypothesis' for CI, which looks at the same examples each time.
    """
    settings.register_profile("tests", deadline=None, max_examples=50)
    settings.load_profile("tests")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As of a job that a shell runs in the background: commands that tests start would never hear of Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(harmony.VARIABLE, str(harmony.folder()))
    config.stash[COUNTED] = asked_for()
    sleeps.forbid()
    _read_certificates_once()
    gc.disable()  # until all is collected: what that makes stays
    config.pluginmanager.register(Meter(), "meter")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Figures(), "figures")
        config.pluginmanager.register(Durations(config.rootpath), "durations-by-file")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """How files are given to processes, see `tests/scheduling.py`."""
    return scheduler(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_finish() -> None:
    """The garbage collector leaves what is there now alone: to look at it all takes 0.3 s each time."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Python ends as it would have."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[STARTED] = logs.so_far()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """A test that fails shows the last lines of the logs of the processes that it had, once."""
    outcome: pytest.TestReport = yield
    if outcome.failed and (since := item.stash.get(STARTED, None)) is not None:
        del item.stash[STARTED]
        outcome.sections += [(f"end of {log}", tail) for log, tail in logs.tails(since)]
    return outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell `tests.ci` how many there were."""
    found = {name: len(reports) for name, reports in terminalreporter.stats.items()}
    failed = found.get("failed", 0) + found.get("error", 0)
    report(Counts(found.get("passed", 0), failed, found.get("skipped", 0)), config.stash[COUNTED])


def _read_certificates_once() -> None:
    """Every client that `httpx` makes reads the authorities' certificates anew, in 30 ms. Tests make thousands of
    clients, and none of them talks TLS.
    """
    plain = ssl.create_default_context

    @cache
    def shared(file: str) -> ssl.SSLContext:
        return plain(cafile=file)

    def create_default_context(*args: Any, **options: Any) -> ssl.SSLContext:
        only_a_file = not args and options.keys() == {"cafile"} and isinstance(options["cafile"], str)
        return shared(options["cafile"]) if only_a_file else plain(*args, **options)

    pytest.MonkeyPatch().setattr(ssl, "create_default_context", create_default_context)


class Figures:
    """Prints what tests had to say at the end of a run, in the one process that prints."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._lines += said(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.section("figures")
        for line in self._lines:
            terminalreporter.write_line(line)
