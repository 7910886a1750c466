"""Sessions that are not to be trained: nobody gets them, and every turn of theirs is accounted for."""

from tests.unit.proxy.store.test_leases import ask, close, delete, group_of, ready, sums
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import ChosenSessions
from rolloutfleet_proxy.store.listing import Listing, list_sessions


def test_an_evaluation_is_never_leased_and_named_as_one(store: SyncStore) -> None:
    (one, first), (two, second) = store.start(2, train=False)
    ready(store, one)
    for session in (one, two):
        close(store, session)
    for asked in ({"session_ids": [first, second]}, {"group_id": group_of(store, one)}):
        granted = ask(store, **asked)
        assert granted.lease is None
        assert granted.statuses == [(first, "evaluation"), (second, "evaluation")]
    assert ask(store).statuses == []
    assert sums(store)["turns"]["live"] == 1


def test_evaluations_hold_up_no_export_of_others(store: SyncStore) -> None:
    [(evaluated, _)], [(trained, name)] = store.start(train=False), store.start()
    for session in (evaluated, trained):
        ready(store, session)
    assert ask(store, max_trajectories=1).statuses == [(name, "leased")]


def test_an_evaluation_that_is_deleted_is_discarded_as_others_are(store: SyncStore) -> None:
    [(session, name)] = store.start(train=False)
    ready(store, session)
    delete(store, session)
    assert sums(store)["turns"]["discarded"] == sums(store)["sessions"]["discarded"] == {"deleted": 1}
    assert ask(store, session_ids=[name]).statuses == [(name, "gone")]


def test_lists_say_which_sessions_are_evaluations_and_those_of_an_older_store_are_none(store: SyncStore) -> None:
    store.start()
    store.reopen(after_version=11)
    store.start(train=False)
    asked = Listing(chosen=ChosenSessions(), limit=10)
    listed = store.read(lambda connection: list_sessions(connection, asked, served=0.0))
    assert [shown["train"] for _, shown in listed] == [True, False]
