"""A request as its session's trainer has it sampled. Pure.

Called before anything is made of the request: template arguments decide which earlier turns it continues.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.messages import TemplateArgs
from rolloutfleet_proxy.domain.sampling import DRAWING, Sampling, SessionSampling

RequestT = TypeVar("RequestT", bound=TurnRequest)


def as_owned(request: RequestT, owned: SessionSampling | None) -> RequestT:
    """The request with the trainer's overrides in the place of what it says, and the defaults where it says nothing."""
    if owned is None:
        return request
    defaults, overrides = owned.defaults, owned.overrides
    asked = request.max_tokens
    max_tokens = overrides.max_tokens or asked or defaults.max_tokens
    sampling = {**defaults.drawing, **request.sampling, **overrides.drawing}
    if max_tokens != asked and sampling.get("min_new_tokens", 0) > (max_tokens or 0):
        sampling["min_new_tokens"] = max_tokens  # An engine refuses more than it may make.
    return replace(
        request,
        sampling=sampling,
        max_tokens=max_tokens,
        max_tokens_is_trainers=overrides.max_tokens is not None or asked is None,
        template=_template(request.template, defaults, overrides),
    )


def sampled(request: TurnRequest, *, max_tokens: int) -> Sampling:
    """What a turn is sampled with, where the engine is asked for so many tokens at the most."""
    drawing: dict[str, Any] = {name: request.sampling.get(name) for name in DRAWING}
    return Sampling(**drawing, max_tokens=max_tokens, chat_template_kwargs=request.template.kwargs)


def _template(asked: TemplateArgs, defaults: Sampling, overrides: Sampling) -> TemplateArgs:
    kwargs = {
        **(defaults.chat_template_kwargs or {}),
        **(asked.kwargs or {}),
        **(overrides.chat_template_kwargs or {}),
    }
    return TemplateArgs(asked.tools, kwargs or None)
