"""A function in a thread that nobody waits for at the process's end: what it does may take long, or for ever."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(act: Callable[..., T], *given: Any) -> T:
    """Its result. Nothing ends it before that: whoever waits for it may be cancelled all the same."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # From here on a wait that is cancelled can't cancel it.
    context = contextvars.copy_context()

    def work() -> None:
        try:
            done.set_result(context.run(act, *given))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="rolloutfleet-aside", daemon=True).start()
    return await asyncio.wrap_future(done)
