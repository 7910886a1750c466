"""A request is sampled as its trainer says: overrides come before it, defaults behind it, and all else stays."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from tests.unit.proxy.domain.test_sampling import owned, said

from rolloutfleet_proxy.capture.sampling import as_owned, sampled
from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.dialects.openai_chat.request import ChatRequest, parse_chat
from rolloutfleet_proxy.domain.messages import EFFORTS
from rolloutfleet_proxy.domain.sampling import Sampling, SessionSampling

OVERRIDDEN = ("sampling", "max_tokens", "template", "max_tokens_is_trainers")


def parse(**fields: Any) -> ChatRequest:
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}]} | fields).encode()
    return parse_chat(body, Reading(efforts=frozenset(EFFORTS)))


requests = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.integers(1, 9),
        "top_p": st.just(1),
        "top_k": st.integers(1, 9),
        "max_tokens": st.integers(1, 9),
        "min_p": st.just(0.5),
        "stop": st.just(["x"]),
        "chat_template_kwargs": st.dictionaries(st.sampled_from(("enable_thinking", "style")), st.integers(1, 9)),
        "reasoning_effort": st.sampled_from(("low", "high")),
    },
)


@given(fields=requests, owned=owned)
def test_each_parameter_is_the_overrides_else_the_requests_else_the_defaults(
    fields: dict[str, Any], owned: SessionSampling
) -> None:
    request = parse(**fields)
    made = as_owned(request, owned)
    asked: dict[str, Any] = {
        name: fields[name] for name in ("temperature", "top_p", "top_k", "max_tokens") if name in fields
    }
    asked |= request.template.kwargs or {}
    expected: dict[str, Any] = {"max_tokens": None} | said(owned.defaults) | asked | said(owned.overrides)
    assert said(sampled(made, max_tokens=made.max_tokens or 0)) | {"max_tokens": made.max_tokens} == expected
    rest = {name: value for name, value in request.sampling.items() if name not in ("temperature", "top_p", "top_k")}
    assert rest.items() <= made.sampling.items()
    untouched = {name: value for name, value in asdict(request).items() if name not in OVERRIDDEN}
    assert untouched.items() <= asdict(made).items() and type(made) is ChatRequest


def test_a_session_whose_trainer_says_nothing_has_its_requests_as_they_are() -> None:
    request = parse(temperature=0.5, chat_template_kwargs={})
    assert as_owned(request, None) is request


@pytest.mark.parametrize(("limit", "expected"), [(5, 5), (30, 20), (None, 20)])
def test_no_more_tokens_are_demanded_than_the_trainer_allows(limit: int | None, expected: int) -> None:
    """An engine refuses a lower limit above the upper one."""
    request = parse(min_tokens=20, max_tokens=40)
    made = as_owned(request, SessionSampling(overrides=Sampling(max_tokens=limit)))
    assert made.sampling["min_new_tokens"] == expected
    assert request.sampling["min_new_tokens"] == 20, "the request is nobody else's to change"
