"""The chat formats of models, as tests load them."""

from pathlib import Path
from typing import Any

from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.render import ChatFormat


def load(source: str | Path, *, token: str | None = None, **settings: Any) -> ChatFormat:
    """The chat format of a model directory. `settings` are those of `ModelSource`. Raises ModelUnreadable."""
    return ModelSource(str(source), **settings).load(token=token)
