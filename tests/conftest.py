"""What all tests share."""

import gc
import os
import ssl
from functools import cache
from typing import Any

import pytest
from hypothesis import settings
from tests.durations import Durations, Meter
from tests.printing import said
from tests.scheduling import scheduler
from toolchain import harmony

HARMONY = "TIKTOKEN_ENCODINGS_BASE"


def pytest_configure(config: pytest.Config) -> None:
    """Let gpt-oss find its vocabulary, which `make harmony` fetches.

    And let no example of hypothesis fail by how long it takes, which depends on what else the machine does. All else is
    as in the profile in force, in CI that of hypothesis for CI.
    """
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")
    if harmony.fetched():
        os.environ.setdefault(HARMONY, str(harmony.folder()))
    _read_certificates_once()
    gc.disable()  # until all is collected: what that makes stays
    config.pluginmanager.register(Meter(), "meter")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Figures(config), "figures")
        config.pluginmanager.register(Durations(config.rootpath), "durations-by-file")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are processors: many tests wait for processes that they have started."""
    return 2 + (os.cpu_count() or 1)


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
    """Prints what tests had to say, in the one process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, pytest.TerminalReporter)
        for line in said(report):
            terminal.ensure_newline()
            terminal.write_line(line)
