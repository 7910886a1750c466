"""Whether and when a call is made again."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet import remote_tensors
from rolloutfleet.fleet import BadArgument, Conflict, Gone, KeyRefused, NotKnown, NotNow, Refused, Unreachable
from rolloutfleet.fleet.exceptions import FleetError, refusal
from rolloutfleet.fleet.retries import (
    ALSO_SERVER_ERRORS,
    BACKOFF,
    LONGEST_RETRY_AFTER,
    NEW_KEYS_AT_ONCE,
    draws_new_key,
    may_be_done,
    wait_before_new_key,
    wait_before_retry,
)
from rolloutfleet.remote_tensors import OwnerUnavailable, RemoteTensorError, UnknownOwner


def answer(status: int, body: object = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=named)


def error_body(code: str, **details: object) -> dict[str, object]:
    return {"error": {"message": "why", "type": "t", "param": "p", "code": code, **details}}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422, 500, 502, 504, 507])
def test_what_another_try_cannot_change_is_not_tried_again(status: int) -> None:
    assert wait_before_retry(refusal(answer(status)), attempt=0, chance=0.5) is None


@pytest.mark.parametrize("status", [408, 429, 503])
def test_not_now_is_tried_again_unless_the_proxy_says_no(status: int) -> None:
    assert wait_before_retry(refusal(answer(status)), attempt=0, chance=0.5) is not None
    assert wait_before_retry(refusal(answer(status, x_should_retry="false")), attempt=0, chance=0.5) is None


@pytest.mark.parametrize("status", [425, 500, 502, 504])
def test_server_errors_are_tried_again_where_another_try_meets_nothing_of_the_first(status: int) -> None:
    def wait(failure: FleetError) -> float | None:
        return wait_before_retry(failure, attempt=0, chance=0.5, statuses=ALSO_SERVER_ERRORS)

    assert wait(refusal(answer(status))) is not None
    assert wait(refusal(answer(status, x_should_retry="false"))) is None


def test_errors_of_shards_are_of_the_same_tree() -> None:
    named = [
        value for value in vars(remote_tensors).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert {OwnerUnavailable, UnknownOwner} <= set(named)
    assert all(issubclass(each, RemoteTensorError) and issubclass(each, FleetError) for each in named)
    assert remote_tensors.Refused is Refused


def test_mistakes_of_the_caller_are_never_tried_again() -> None:
    for failure in (BadArgument("x", "y"), FleetError("no export")):
        assert wait_before_retry(failure, attempt=0, chance=0.0) is None


def test_a_key_gives_way_to_a_new_one_only_where_nothing_can_have_been_done_under_it() -> None:
    unreachable, broke_off = (
        refusal(answer(503, error_body(f"owner_{how}"))) for how in ("unreachable", "unavailable")
    )
    assert draws_new_key(unreachable) and not may_be_done(unreachable)
    assert not may_be_done(Unreachable("no connection"))
    for failure in (broke_off, refusal(answer(503, error_body("draining"))), Unreachable("it broke off", sent=True)):
        assert may_be_done(failure) and not draws_new_key(failure)


def test_some_new_keys_are_tried_at_once_and_more_with_a_wait() -> None:
    waits = [wait_before_new_key(1.0, keys=keys) for keys in range(1, 2 * NEW_KEYS_AT_ONCE)]
    assert waits == sorted(waits) and set(waits) == {0.0, 1.0}


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 1e6))
def test_waits_grow_and_are_bounded(attempt: int, chance: float, asked_for: float | None) -> None:
    failure = Unreachable("nobody")
    wait = wait_before_retry(failure, attempt=attempt, chance=chance)
    assert wait is not None
    assert 0.75 * BACKOFF.first <= wait <= BACKOFF.longest
    later = Refused("busy", status=503, retry_after=asked_for)
    told = wait_before_retry(later, attempt=attempt, chance=chance)
    assert told is not None
    assert wait <= told <= max(BACKOFF.longest, LONGEST_RETRY_AFTER)
    if asked_for is not None:
        assert told >= min(asked_for, LONGEST_RETRY_AFTER)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, KeyRefused) for status in (401, 403)),
        *((status, Conflict) for status in (409, 422)),
        *((status, NotNow) for status in (429, 503, 504, 507)),
        *((status, Refused) for status in (400, 500, 502)),
        (404, NotKnown),
        (410, Gone),
    ],
)
def test_every_status_has_its_kind(status: int, kind: type[Refused]) -> None:
    made = refusal(answer(status, error_body("some_code", dumps=["a"]), retry_after="7"))
    assert type(made) is kind
    assert (made.status, made.code, made.param, made.said) == (status, "some_code", "p", "why")
    assert made.details == {"dumps": ["a"]}
    assert made.retry_after == 7.0


@pytest.mark.parametrize("body", [None, [], "text", {"error": "text"}, {"error": None}])
def test_an_answer_that_is_no_proxys_is_an_error_all_the_same(body: object) -> None:
    made = refusal(answer(503, body, retry_after="soon"))
    assert (made.code, made.retry_after) == (None, None)
