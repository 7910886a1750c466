"""Headers that only proxies send: of whoever else sends them they are taken for none."""

from typing import Any

import pytest

from rolloutfleet_proxy.http.headers import FROM_PEER, settle
from rolloutfleet_proxy.sessions.auth import AdminKeys

OLD, NEW = "an-older-admin-key", "a-newer-admin-key"
MARKS = [(b"x-rolloutfleet-forwarded", b"1"), (b"x-rolloutfleet-receipt", b"one"), (b"x-rolloutfleet-placed", b"1")]
OTHERS = [(b"host", b"proxy"), (b"accept", b"*/*")]


def settled(*headers: tuple[bytes, bytes], keys: AdminKeys) -> dict[str, Any]:
    scope: dict[str, Any] = {"headers": [*OTHERS, *headers]}
    settle(scope, lambda voucher, key: keys.vouched(voucher) or keys.match(key))
    return scope


@pytest.mark.parametrize("keys", [AdminKeys([NEW]), AdminKeys([NEW, OLD])])
def test_marks_of_a_caller_who_has_no_admin_key_are_dropped(keys: AdminKeys) -> None:
    forged = [
        [],
        [(b"x-rolloutfleet-voucher", b"")],
        [(b"x-rolloutfleet-voucher", AdminKeys(["some-other-admin-key"]).voucher().encode())],
        [(b"x-rolloutfleet-voucher", b"\xff" * 64), (b"authorization", b"Bearer of-a-session")],
    ]
    for more in forged:
        scope = settled(*MARKS, *more, keys=keys)
        assert scope["headers"] == [*OTHERS, *(header for header in more if header[0] == b"authorization")]
        assert scope[FROM_PEER] is False


def test_marks_of_a_peer_and_of_an_admin_stay_and_the_voucher_goes_no_further() -> None:
    for sender, receiver in ((NEW, [NEW]), (OLD, [NEW, OLD])):
        voucher = (b"x-rolloutfleet-voucher", AdminKeys([sender]).voucher().encode())
        scope = settled(*MARKS, voucher, keys=AdminKeys(receiver))
        assert scope == {"headers": [*OTHERS, *MARKS], FROM_PEER: True}
    admin = (b"authorization", f"Bearer {NEW}".encode())
    assert settled(*MARKS, admin, keys=AdminKeys([NEW]))["headers"] == [*OTHERS, *MARKS, admin]


def test_a_call_without_marks_stays_as_it_is() -> None:
    assert settled(keys=AdminKeys([NEW])) == {"headers": OTHERS}
