"""Which request ids are taken, and which replaced."""

import re

import pytest

from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.telemetry.request_ids import identified

MADE = re.compile(rb"req-[0-9a-f]{24}")
KEY = Owner(0, "0123456789ab").key().encode()


@pytest.mark.parametrize("given", [b"1", b"a" * 128, b"trainer/step=3:turn@2", b"3fa85f64-5717-4562-b3fc-2c963f66afa6"])
def test_a_short_plain_id_is_taken(given: bytes) -> None:
    headers, identity = identified([(b"accept", b"*/*"), (b"x-request-id", given)])
    assert identity == given
    assert headers == [(b"accept", b"*/*"), (b"x-request-id", given)]


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"a" * 129,
        b"two words",
        b"caf\xc3\xa9",
        b'quo"te',
        b"back\\slash",
        b"tab\t",
        b"a\nb",
        pytest.param(KEY, id="a session's key"),
    ],
)
def test_any_other_is_replaced(given: bytes) -> None:
    headers, identity = identified([(b"x-request-id", given)])
    assert MADE.fullmatch(identity)
    assert headers == [(b"x-request-id", identity)]


def test_one_is_made_where_there_is_none_or_more_than_one() -> None:
    for headers in ([], [(b"x-request-id", b"one"), (b"x-request-id", b"two")]):
        named, identity = identified(headers)
        assert MADE.fullmatch(identity) and named == [(b"x-request-id", identity)]


def test_the_callers_key_is_no_id() -> None:
    for name, value in ((b"authorization", b"Bearer an-admins-key"), (b"x-api-key", b"an-admins-key")):
        _, identity = identified([(name, value), (b"x-request-id", b"an-admins-key")])
        assert MADE.fullmatch(identity)
