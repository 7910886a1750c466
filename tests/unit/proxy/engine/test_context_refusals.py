"""What an engine says of a prompt that does not fit is read: how long it is, and how much the engine has room for."""

import pytest

from rolloutfleet_engine.requests import RequestRefused, check_length
from rolloutfleet_proxy.domain.errors import ContextExceeded
from rolloutfleet_proxy.engine.errors import engine_failure

TOO_LONG = (
    "Input length (70 tokens) exceeds the maximum allowed length (64 tokens). "
    "Use a shorter input or enable --allow-auto-truncate."
)


@pytest.mark.parametrize(("prompt", "asked", "room"), [(70, None, -6), (64, 1, 0), (60, 5, 4)])
def test_sglangs_own_numbers_are_kept(prompt: int, asked: int | None, room: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_length(prompt, asked, context=64)
    error = engine_failure(400, str(refused.value))
    assert isinstance(error, ContextExceeded)
    assert (error.prompt_tokens, error.context_length, error.room) == (prompt, 64, room)


def test_so_are_those_of_its_scheduler() -> None:
    error = engine_failure(400, TOO_LONG)
    assert isinstance(error, ContextExceeded) and (error.prompt_tokens, error.context_length) == (70, 64)


def test_an_engine_that_gives_none_is_understood_all_the_same() -> None:
    error = engine_failure(400, "This exceeds the model's context length.")
    assert isinstance(error, ContextExceeded) and error.room is None
