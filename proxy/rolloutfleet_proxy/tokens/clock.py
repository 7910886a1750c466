"""The time that a chat format writes into prompts: that at which a session began, so that they agree for good."""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime
from typing import Any

_OWN_TEMPLATE = "DefaultRenderer"
_GPT_OSS = "GptOssRenderer"


def dated(renderer: Any, clock: float | None) -> Any:
    """The renderer, with this time (seconds since the epoch, told as UTC) for what it writes; None: the time it is."""
    kind = type(renderer).__name__
    if clock is None or kind not in (_OWN_TEMPLATE, _GPT_OSS):
        return renderer
    now = datetime.fromtimestamp(clock, UTC).replace(tzinfo=None)
    made = copy(renderer)
    if kind == _OWN_TEMPLATE:
        made._tokenizer = renderer._tokenizer.at(now)
    elif renderer.config.conversation_start_date is None:
        made._conversation_start_date_resolved = now.strftime("%Y-%m-%d")
    return made
