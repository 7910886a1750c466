"""Answers to calls with an Idempotency-Key."""

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import Closed
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.idempotency import KeyedCall, keyed_call
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.store import idempotency
from rolloutfleet_proxy.store.idempotency import once, recall, remember
from rolloutfleet_proxy.store.transaction import Transaction


def call(key: str = "k", *, scope: str = "reward s1", body: bytes = b"{}") -> KeyedCall:
    made = keyed_call(key, scope=scope, body=body)
    assert made is not None
    return made


def answer(store: SyncStore, made: KeyedCall | None, text: str) -> str:
    def operation(transaction: Transaction) -> Closed:
        transaction.set_fact("done", (transaction.fact("done") or 0) + 1)
        return Closed(session_id=text)

    return store.run(lambda transaction: once(transaction, made, Closed, operation)).session_id


def keep(store: SyncStore, key: str) -> None:
    store.run(lambda transaction: remember(transaction, call(key), "1"))


def test_the_same_call_gets_the_first_answer_also_after_a_restart(store: SyncStore) -> None:
    assert answer(store, call(), "first") == "first"
    store.reopen()
    assert answer(store, call(), "second") == "first"
    assert store.rows("SELECT value FROM facts WHERE name = 'done'") == [(1,)]


def test_another_scope_or_key_is_another_call(store: SyncStore) -> None:
    assert answer(store, call(), "first") == "first"
    assert answer(store, call(scope="reward s2"), "second") == "second"
    assert answer(store, call("other"), "third") == "third"
    assert answer(store, None, "fourth") == "fourth"


def test_another_body_is_refused_and_changes_nothing(store: SyncStore) -> None:
    answer(store, call(), "first")
    with pytest.raises(DomainError) as refused:
        answer(store, call(body=b"[]"), "second")
    assert (status_of(refused.value), refused.value.code) == (422, "idempotency_key_reused")
    assert answer(store, call(), "third") == "first"


def test_a_failed_call_is_run_anew(store: SyncStore) -> None:
    def fails(transaction: Transaction) -> Closed:
        raise DomainError("not now")

    with pytest.raises(DomainError):
        store.run(lambda transaction: once(transaction, call(), Closed, fails))
    assert answer(store, call(), "second") == "second"


@pytest.mark.parametrize("bad", ["", "k" * 256, "tab\t", "café", "\x7f"])
def test_keys_that_are_refused(bad: str) -> None:
    with pytest.raises(DomainError) as refused:
        keyed_call(bad, scope="s", body=b"")
    assert (status_of(refused.value), refused.value.param) == (400, "Idempotency-Key")


def test_no_header_is_no_call() -> None:
    assert keyed_call(None, scope="s", body=b"") is None
    assert keyed_call("k" * 255, scope="s", body=b"") is not None


def test_answers_are_bounded_in_number_and_age(store: SyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "KEPT", 3)
    for key in "abcde":
        keep(store, key)
    kept = [key for key in "abcde" if recall(store.connection, call(key))]
    assert kept == ["c", "d", "e"]
    store.advance(idempotency.KEPT_SECONDS + 1)
    keep(store, "f")
    assert store.rows("SELECT key FROM idempotency") == [("f",)]
