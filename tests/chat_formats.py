"""The chat formats of models, as tests load them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.render import Ask, ChatFormat, Render


def load(source: str | Path, *, token: str | None = None, **settings: Any) -> ChatFormat:
    """The chat format of a model directory. `settings` are those of `ModelSource`. Raises ModelUnreadable."""
    return ModelSource(str(source), **settings).load(token=token)


def extending(model: ChatFormat) -> Render:
    """Renders what extends a turn. Raises AssertionError where a conversation would be rendered whole."""

    def rendered(ask: Ask) -> array[int] | None:
        assert ask.turn is not None, "the turn is not extended"
        return model.rendered(ask)

    return rendered
