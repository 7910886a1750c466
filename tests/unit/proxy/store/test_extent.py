"""A fleet's largest size is not forgotten, so that what a scaled-away proxy keeps is never called unknown."""

from pathlib import Path

from tests.unit.proxy.cluster.served import settings_of
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.store import boots, extent

PORTS = [1, 2, 3, 4, 5, 6]


def test_a_new_store_knows_of_no_proxies_and_keeps_the_most_that_it_learns(tmp_path: Path) -> None:
    store = SyncStore(tmp_path)
    assert store.read(extent.load) == 0
    for ever in (3, 5, 4):
        store.run(lambda transaction, ever=ever: extent.save(transaction, ever))  # type: ignore[misc]
    store.run(lambda transaction: boots.begin(transaction, crash=None, drain=None))
    store.reopen()
    assert store.read(extent.load) == 5
    store.close()


def test_a_store_older_than_this_knowledge_calls_no_proxy_unknown(tmp_path: Path) -> None:
    store = SyncStore(tmp_path)
    store.run(lambda transaction: boots.begin(transaction, crash=None, drain=None))
    assert store.read(extent.load) == extent.ANY
    store.close()


def test_what_is_learnt_is_told_once_and_never_shrinks() -> None:
    told: list[int] = []
    peers = Peers(settings_of(1, PORTS, replicas=2), grown=told.append)
    peers.follow(5)
    peers.follow(3)
    peers.learn(4)
    peers.learn(6)
    assert (peers.ever, told) == (6, [2, 5, 6])


def test_a_proxy_that_is_scaled_away_itself_was_there(tmp_path: Path) -> None:
    assert Peers(settings_of(4, PORTS, replicas=2)).ever == 5
