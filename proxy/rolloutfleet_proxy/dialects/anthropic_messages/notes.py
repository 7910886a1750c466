"""What a request says that has no effect, or none of its own, gathered as it is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutfleet_proxy.dialects.images import Images

CACHE_CONTROL: Final = "cache_control"
"""Where a prompt's cache is to end. Clients move it from message to message, and the engines keep their caches
without it."""


@dataclass(slots=True)
class Notes:
    """As `TurnRequest` has them."""

    images: Images
    ignored: list[str] = field(default_factory=list)
    stripped: dict[str, None] = field(default_factory=dict)
    """Each name once."""

    def others(self, given: Mapping[str, Any], known: frozenset[str], *, at: str) -> None:
        """Note the fields of an object that nothing here has a use for, unless they say nothing; `known` are those that
        something has, `cache_control` not among them."""
        if given.keys() <= known:
            return
        for name in given.keys() - known:
            if given[name] is None or given[name] is False:
                continue
            if name == CACHE_CONTROL:
                self.stripped[name] = None
            else:
                self.ignored.append(f"{at}.{name}")
