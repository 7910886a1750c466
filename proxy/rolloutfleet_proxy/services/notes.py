"""Writes that no answer waits for."""

from asyncio import Future
from collections.abc import Callable
from typing import Any

from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import Writer
from rolloutfleet_proxy.telemetry import logger


def write_soon(writer: Writer, operation: Callable[[Transaction], object]) -> None:
    """Write when the writer comes to it. A failure is logged; the rows then say less, never something wrong."""
    writer.submit(operation).add_done_callback(_log_failure)


def _log_failure(future: "Future[Any]") -> None:
    if not future.cancelled() and future.exception() is not None:
        logger.warning("a note could not be written: %s", future.exception())
