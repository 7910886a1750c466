"""The operator ends, whatever kopf does."""

import asyncio
from typing import Any

import kopf
import pytest
from kopf._core.intents.causes import Activity

from rolloutfleet_operator.cluster import handlers, run


async def test_a_kopf_that_never_comes_to_its_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def stuck(*, registry: Any, **_: Any) -> None:
        for handler in registry._activities._handlers:
            if handler.activity == Activity.CLEANUP:
                await handler.fn()
                asked.append(handler.id)
        await asyncio.Event().wait()

    monkeypatch.setattr(run, "KOPF_STOPS_WITHIN", 0.1)
    monkeypatch.setattr(kopf, "operator", stuck)
    nobody: Any = None
    assert await run._watch(nobody, "here", asyncio.Event()) is False
    assert len(asked) == 1


def test_kopf_ends_before_it_kills_the_operator() -> None:
    """Its own limit is the last resort: a process that it kills lets go of no Lease and says nothing."""
    assert run.KOPF_STOPS_WITHIN < handlers.LONGEST_END
