"""Who says how a turn is sampled: the agent's request, and its trainer by defaults and overrides. Pure.

An override counts whatever the request says, a default where it says nothing. A session's own word on a parameter,
in either, comes before the fleet's. Template arguments are parameters each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

_encode = msgspec.json.Encoder().encode


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value for each parameter that a trainer may own; None: nothing is said of it."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

    @property
    def drawing(self) -> dict[str, Any]:
        """Those that say how a token is drawn, under the names that SGLang has for them, too."""
        return {name: value for name in DRAWING if (value := getattr(self, name)) is not None}


DRAWING: Final = ("temperature", "top_p", "top_k")
_SAMPLED: Final = (*DRAWING, "max_tokens")


class SessionSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session's turns are sampled, as its row has it."""

    defaults: Sampling = Sampling()
    overrides: Sampling = Sampling()

    def encode(self) -> str | None:
        """As JSON, which `decode` reads; None of nothing."""
        return _encode(self).decode() if self != UNSAID else None

    @classmethod
    def decode(cls, text: str) -> Self:
        return msgspec.json.decode(text, type=cls)

    def over(self, fleet: SessionSampling) -> SessionSampling:
        """What counts where a session says this, and its fleet that."""
        return SessionSampling(
            defaults=_filled(self.defaults, fleet.defaults, unless=self.overrides),
            overrides=_filled(self.overrides, fleet.overrides, unless=self.defaults),
        )


UNSAID: Final = SessionSampling()


def _filled(own: Sampling, fleet: Sampling, *, unless: Sampling) -> Sampling:
    """With the fleet's word on what the session is silent about, in `unless` too."""
    unsaid = [name for name in _SAMPLED if getattr(own, name) is None and getattr(unless, name) is None]
    elsewhere = unless.chat_template_kwargs or {}
    theirs = {name: value for name, value in (fleet.chat_template_kwargs or {}).items() if name not in elsewhere}
    return replace(
        own,
        **{name: getattr(fleet, name) for name in unsaid},
        chat_template_kwargs={**theirs, **(own.chat_template_kwargs or {})} or None,
    )
