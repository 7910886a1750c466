"""A check that no test outside `tests/timing` sleeps but by `tests/waiting.py`: what is waited for must be seen."""

import asyncio
import sys
import time
from typing import Any, Final

from tests.paths import ROOT

TESTS: Final = f"{ROOT / 'tests'}/"
MAY_SLEEP: Final = (f"{TESTS}waiting.py", f"{TESTS}timing/", f"{TESTS}unit/")
"""The loop of unit tests passes time without waiting, and a guard of their own refuses the rest."""


class Slept(Exception):
    """A test slept."""


def forbid() -> None:
    """From now on, in this process."""
    sleep = asyncio.sleep

    def checked(delay: float, result: Any = None) -> Any:
        if delay > 0:
            _check(sys._getframe(1).f_code.co_filename)
        return sleep(delay, result)

    blocks = time.sleep

    def checked_block(seconds: Any, /) -> None:
        _check(sys._getframe(1).f_code.co_filename)
        blocks(seconds)

    asyncio.sleep = checked
    asyncio.tasks.sleep = checked
    time.sleep = checked_block


def _check(file: str) -> None:
    if file.startswith(TESTS) and not file.startswith(MAY_SLEEP):
        raise Slept(f"{file} sleeps: wait for what is to come with tests/waiting.py")
