"""What turns said is read by their numbers, within a bound, and only of turns that may be shown."""

from functools import partial

from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.domain.turn import Answer, Extras
from rolloutfleet_proxy.store.trajectories import discard_orphans
from rolloutfleet_proxy.store.turns import hide, load_answers


def test_answers_of_turns_that_are_hidden_discarded_or_not_there_are_left_out(store: SyncStore) -> None:
    (session, _), (other, _) = store.start(count=2)
    extras = Extras(parts=[1], kept={"declared": {}}, top_logprobs=[[(-0.5, 1)]])
    store.commit(session, name="a", extras=extras)
    store.commit(session, name="b", delivered=False)
    store.commit(session, name="c")
    store.commit(session, name="again", asks="b")
    store.commit(other, name="d")
    assert store.run(partial(discard_orphans, session=session)) == 1
    store.run(partial(hide, session=session, number=3))
    found, nbytes = store.read(partial(load_answers, session=session, numbers=[4, 1, 2, 3, 5], most=1000))
    said = {"role": "assistant", "content": "3 4"}
    without = Extras(parts=[1], kept={"declared": {}})
    assert found == {4: Answer(said, "stop", Extras()), 1: Answer(said, "stop", without)}
    assert nbytes == 2 * len('{"role":"assistant","content":"3 4"}')


def test_no_more_is_read_than_goes_over_the_bound(store: SyncStore) -> None:
    [(session, _)] = store.start()
    for number in range(5):
        store.commit(session, name=f"t{number}")
    length = len('{"role":"assistant","content":"3 4"}')
    for most, read in ((2 * length, 3), (5 * length, 5), (0, 1)):
        found, nbytes = store.read(partial(load_answers, session=session, numbers=range(1, 6), most=most))
        assert (len(found), nbytes) == (read, read * length)
