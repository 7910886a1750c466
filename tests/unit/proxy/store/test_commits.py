"""The last commits, as the next life finds them."""

from functools import partial
from pathlib import Path

from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.store import boots, commits

MADE: list[commits.Commit] = [("s", "turn-1", None), ("s", "turn-2", "turn-1")]


def test_what_a_life_wrote_down_is_found_by_the_next_one_alone(tmp_path: Path) -> None:
    store = SyncStore(tmp_path / "store")
    load = partial(commits.load, most=10)
    begin = partial(boots.begin, crash=None, drain=None)
    assert store.read(load) == []
    store.run(begin)
    store.run(partial(commits.keep, commits=MADE))
    store.reopen()
    assert store.read(load) == MADE
    store.run(begin)
    assert store.read(load) == [], "this life may have committed more, and not lived to write it"
    store.run(partial(commits.keep, commits=MADE[1:]))
    assert store.read(load) == MADE[1:]
    store.close()
