"""Blocking twins of asynchronous methods: made of these, with their parameters, types and docstrings.

A blocking object has the asynchronous one that it stands for, and the thread whose event loop runs that one's calls.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from types import GenericAlias, TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, get_args

from rolloutfleet.fleet.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Blocking:
    """What stands for an asynchronous context manager."""

    _loop: LoopThread
    _asynchronous: Any

    def __init_subclass__(cls) -> None:
        """Twins are named as methods of the class, so that they are shown and pickled as such."""
        for name, method in vars(cls).items():
            if hasattr(method, "__signature__"):
                method.__module__, method.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"

    def __init__(self, fleet: Any, asynchronous: Any) -> None:
        self._loop = fleet._loop
        self._asynchronous = asynchronous

    def __enter__(self) -> Self:
        self._loop.run(self._asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._asynchronous.__aexit__(kind, error, trace))


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Returns what the coroutine returns."""
    return _twin(method, lambda self, coroutine: self._loop.run(coroutine), inspect.signature(method).return_annotation)


def listing(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], list[T]]:
    """Returns all that the iterator brings."""
    (item,) = get_args(inspect.signature(method).return_annotation)
    return _twin(method, lambda self, items: self._loop.run(_listed(items)), GenericAlias(list, item))


def wrapping(method: Callable[Concatenate[Any, P], T], wrap: Callable[[Any, T], R]) -> Callable[Concatenate[Any, P], R]:
    """Returns what `wrap` makes of the blocking object and what the method returns."""
    returns = wrap if isinstance(wrap, type) else inspect.signature(wrap).return_annotation
    return _twin(method, wrap, returns)


def _twin(method: Callable[..., Any], result: Callable[[Any, Any], Any], returns: Any) -> Callable[..., Any]:
    @wraps(method, assigned=("__name__",))
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return result(self, method(self._asynchronous, *args, **options))

    call.__doc__ = (method.__doc__ or "").replace("async with", "with")
    call.__dict__["__signature__"] = inspect.signature(method).replace(return_annotation=returns)
    return call


async def _listed(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]
