"""The chat formats of models, as tests load them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.render import Ask, ChatFormat, Render


def load(source: str | Path, *, token: str | None = None, **settings: Any) -> ChatFormat:
    """The chat format of a model directory. `settings` are those of `ModelSource`. Raises ModelUnreadable."""
    return ModelSource(str(source), **settings).load(token=token)


def helped_from(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has conversations of more letters rendered in the helper process."""
    for limit in ("LONG_CHARACTERS", "LONG_CHARACTERS_QUICKLY"):
        monkeypatch.setattr(f"rolloutfleet_proxy.tokens.tokenizing.{limit}", length)


def extending(model: ChatFormat) -> Render:
    """Renders what extends a turn. Raises AssertionError where a conversation would be rendered whole."""

    def rendered(ask: Ask) -> array[int] | None:
        assert ask.turn is not None, "the turn is not extended"
        return model.rendered(ask)

    return rendered
