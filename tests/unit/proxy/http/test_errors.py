"""Error answers have the OpenAI API's form and tell a client whether to try again."""

import importlib
import json
import pkgutil
from collections.abc import Iterator

import pytest

import rolloutfleet_proxy
from rolloutfleet import errors as codes
from rolloutfleet_proxy.domain.errors import (
    BodyTooLarge,
    DiskFull,
    DomainError,
    Draining,
    EngineError,
    EngineOverloaded,
    EngineTimeout,
    EpochStale,
    ForbiddenScope,
    InternalError,
    InvalidKey,
    InvalidParameter,
    InvalidRequest,
    MissingParameter,
    NoTurnYet,
    PauseFailed,
    PeerError,
    RewardFrozen,
    SessionClosed,
    SessionNotFound,
    SessionReclaimed,
    Stopping,
    TooManyValues,
    UnknownParameter,
    UnsupportedParameter,
)
from rolloutfleet_proxy.http.errors import STATUSES, body_of, headers_of, status_of

KNOWN = {value for name, value in vars(codes).items() if name.isupper()}
ANSWERED_BY_HAND = (PauseFailed, PeerError)
"""Their status is that of the error that they tell of."""


def kinds(of: type[DomainError] = DomainError) -> Iterator[type[DomainError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.fixture(scope="module", autouse=True)
def whole_proxy() -> None:
    """All modules, since some define errors of their own."""
    for module in pkgutil.walk_packages(rolloutfleet_proxy.__path__, "rolloutfleet_proxy."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_every_error_has_a_status_and_a_known_code() -> None:
    raised = [kind for kind in kinds() if hasattr(kind, "code") and kind not in ANSWERED_BY_HAND]
    assert len(raised) > 50
    assert [kind for kind in raised if STATUSES.keys().isdisjoint(kind.__mro__)] == []
    assert [kind for kind in raised if kind.code not in KNOWN] == []


def test_every_code_is_some_errors() -> None:
    """But for `cancelled`, which is only counted, and `starting`, which nothing is answered."""
    assert KNOWN - {kind.code for kind in kinds() if hasattr(kind, "code")} == {codes.CANCELLED, codes.STARTING}


def test_body_has_the_four_fields() -> None:
    error = InvalidRequest('said "so"', param="messages[0].role")
    assert json.loads(body_of(error)) == {
        "error": {
            "message": 'said "so"',
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "invalid_request",
        }
    }


def test_body_holds_what_an_error_tells_besides() -> None:
    within = json.loads(body_of(SessionReclaimed("It is gone.", details={"dumps": ["a"]})))
    assert within["error"]["dumps"] == ["a"]
    other = {"ordinal": 1, "error": NoTurnYet()}
    beside = json.loads(body_of(EpochStale("It is over.", {"epoch": 4, "failed": [other]})))
    assert (beside["error"]["code"], beside["epoch"]) == ("epoch_stale", 4)
    assert beside["failed"] == [{"ordinal": 1, **json.loads(body_of(NoTurnYet()))}]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NoTurnYet(), 400, "invalid_request_error"),
        (InvalidKey(), 401, "authentication_error"),
        (ForbiddenScope("x"), 403, "permission_error"),
        (SessionNotFound("x"), 404, "not_found_error"),
        (RewardFrozen("x"), 409, "conflict_error"),
        (SessionClosed("x"), 410, "gone_error"),
        (BodyTooLarge(1), 413, "invalid_request_error"),
        (TooManyValues(2, 1), 413, "invalid_request_error"),
        (EngineOverloaded("x"), 429, "rate_limit_error"),
        (InternalError(), 500, "server_error"),
        (EngineError("x"), 502, "server_error"),
        (EngineTimeout("x"), 504, "timeout_error"),
        (DiskFull("x"), 507, "server_error"),
    ],
)
def test_status_follows_from_the_class_and_type_from_the_status(error: DomainError, status: int, kind: str) -> None:
    assert status_of(error) == status
    assert json.loads(body_of(error))["error"]["type"] == kind


def test_an_error_that_is_passed_on_keeps_its_status() -> None:
    theirs = PeerError("Proxy 1: Not now.", code="no_room", status=418, param=None)
    undone = PauseFailed(theirs, "Proxy 1: Not now. It was undone.", {})
    assert (status_of(theirs), status_of(undone), undone.code) == (418, 418, "no_room")


def test_headers_say_when_and_whether_to_retry() -> None:
    assert headers_of(EngineError("x")) == []
    assert headers_of(EngineOverloaded("x", retry_after=0.2)) == [(b"retry-after", b"1")]
    assert headers_of(EngineOverloaded("x", retry_after=7)) == [(b"retry-after", b"7")]
    assert headers_of(RewardFrozen("x")) == [(b"x-should-retry", b"false")]
    assert headers_of(Draining("x")) == [(b"retry-after", b"1")]
    assert headers_of(Stopping()) == [(b"retry-after", b"1"), (b"connection", b"close")]


def test_errors_of_a_parameter_name_it() -> None:
    for error, code in [
        (InvalidParameter("n", "no"), codes.INVALID_REQUEST),
        (MissingParameter("n"), codes.INVALID_REQUEST),
        (UnknownParameter("n"), codes.INVALID_REQUEST),
        (UnsupportedParameter("n", "no"), codes.UNSUPPORTED_PARAMETER),
    ]:
        assert (status_of(error), error.param, error.code) == (400, "n", code)
