"""How a new session's turns are sampled, by what its start and the fleet say: decided once, and stored with it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rolloutfleet import wire
from rolloutfleet.spec_for_proxies import SamplingSpec
from rolloutfleet_proxy.domain.errors import InvalidParameter
from rolloutfleet_proxy.domain.sampling import UNSAID, SessionSampling
from rolloutfleet_proxy.tokens.quirks import Unrenderable

CheckArguments = Callable[[Mapping[str, Any]], None]
"""Raises Unrenderable for template arguments that the chat format doesn't take."""

_ARGUMENTS: Final = "chat_template_kwargs"


def session_sampling(
    asked: wire.SessionSampling | None, fleet: SamplingSpec, check_arguments: CheckArguments
) -> SessionSampling:
    """What counts for sessions that are started now.

    Raises InvalidParameter, which names the field, for template arguments that the chat format doesn't take.
    """
    own = _said(asked)
    sampling = own.over(_said(fleet))
    for where, said in (("sampling.defaults", own.defaults), ("sampling.overrides", own.overrides)):
        try:
            check_arguments(said.chat_template_kwargs or {})
        except Unrenderable as error:
            raise InvalidParameter(_place(where, error), f"{error}.") from None
    both = {
        **(sampling.defaults.chat_template_kwargs or {}),
        **(sampling.overrides.chat_template_kwargs or {}),
    }
    try:
        check_arguments(both)
    except Unrenderable as error:
        raise InvalidParameter("sampling", f"With the fleet's own sessions.sampling: {error}.") from None
    return sampling


def _said(model: wire.SessionSampling | SamplingSpec | None) -> SessionSampling:
    return UNSAID if model is None else SessionSampling.decode(model.model_dump_json(exclude_none=True))


def _place(where: str, error: Unrenderable) -> str:
    named = error.param or _ARGUMENTS
    return f"{where}.{named}" if named.startswith(_ARGUMENTS) else f"{where}.{_ARGUMENTS}.{named}"
