"""Exports as shards: the same tensors by reference, under the same ids however often, put once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from tests.unit.proxy.exports.test_rows_and_forms import as_json, branched_session, leased
from tests.unit.proxy.shards.shelf import Shelf

from rolloutfleet.tensors import RemoteTensor, remote_tensors
from rolloutfleet.wire import CloseSession, Export
from rolloutfleet_proxy.exports.forms import json_pieces
from rolloutfleet_proxy.exports.rows import TENSORS
from rolloutfleet_proxy.exports.shards import references
from rolloutfleet_proxy.store import leases
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.exports import ExportGone
from rolloutfleet_proxy.store.leases import SHARDS_AFTER_LEASE, Grant
from rolloutfleet_proxy.store.trajectories import close_session

ADDRESS = "http://127.0.0.1:8080"
LEASE_SECONDS = 100.0
Json = dict[str, Any]


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    yield made
    made.close()


def take(shelf: Shelf, **asked: Any) -> Grant:
    return leased(shelf.store, lease_seconds=LEASE_SECONDS, **asked)


def release(shelf: Shelf, granted: Grant) -> None:
    assert granted.lease is not None
    lease = granted.lease
    shelf.store.run(lambda transaction: leases.release(transaction, lease))


def export(shelf: Shelf, granted: Grant) -> Json:
    """What a trainer is answered; its shards are there by then."""
    owner = shelf.store.owner
    shelf.run(shelf.shards.put_export(granted))
    head: Json = {"lease_id": granted.lease, "expires_in": 1.0, "run": 0, "version": 7, "sessions": []}
    pieces = json_pieces(shelf.store.read, granted, head, references=references(owner, ADDRESS))
    answer: Json = json.loads(b"".join(pieces))
    Export.model_validate(answer)
    return answer


def ids(answer: Json) -> list[str]:
    return [reference.shard_id for reference in remote_tensors(answer)]


def fetched(shelf: Shelf, reference: Any) -> list[Any]:
    known = RemoteTensor.from_json(reference)
    assert known.owner == ADDRESS
    file = shelf.get(known.shard_id)
    assert file is not None
    [(name, tensor)] = safetensors.numpy.load(file).items()
    assert name == known.shard_id and tensor.shape == known.shape and tensor.dtype.name == known.dtype
    values: list[Any] = tensor.tolist()
    return values


@pytest.mark.parametrize("style", ["concat", "individual"])
def test_each_tensor_of_each_row_is_a_shard_that_holds_what_the_lists_hold(shelf: Shelf, style: str) -> None:
    branched_session(shelf.store)
    branched_session(shelf.store)
    granted = take(shelf, style=style, discount=0.5)
    answer, full = export(shelf, granted), as_json(shelf.store, granted)
    its, rows = ids(answer), 0
    for referred, whole in zip(answer["trajectories"], full["trajectories"], strict=True):
        first = min(number for row in whole["rows"] for number in row["tensors"]["turn_ids"] if number >= 0)
        for by_reference, in_full in zip(referred["rows"], whole["rows"], strict=True):
            rows += 1
            assert by_reference["tensors"].keys() == set(TENSORS)
            expected = in_full.pop("tensors")
            # A row is fetched alone, so its turns are counted within their trajectory.
            expected["turn_ids"] = [number if number < 0 else number - first for number in expected["turn_ids"]]
            assert {name: fetched(shelf, of) for name, of in by_reference.pop("tensors").items()} == expected
            own = {referred["turns"][number]["turn_id"] for number in expected["turn_ids"] if number >= 0}
            assert own <= set(by_reference["turn_ids"])
    assert answer["trajectories"] == full["trajectories"], "all else is as in the other forms"
    assert len(set(its)) == rows * len(TENSORS) == shelf.store.read(audit)["shards"]["count"]


def test_the_same_export_has_the_same_ids_and_puts_nothing_again(shelf: Shelf) -> None:
    (_, first), (_, second) = branched_session(shelf.store), branched_session(shelf.store)
    granted = take(shelf)
    before, files = export(shelf, granted), [(file, file.stat().st_mtime_ns) for file in shelf.files()]

    assert ids(export(shelf, granted)) == ids(before), "asked again, as after a lost answer"
    release(shelf, granted)
    alone = [export(shelf, take(shelf, session_ids=[name], discount=0.1)) for name in (first, second)]
    assert [*ids(alone[0]), *ids(alone[1])] == ids(before), "leased otherwise, with other returns"
    shelf.tick(after=LEASE_SECONDS)
    shelf.reopen()
    again = export(shelf, take(shelf))
    assert ids(again) == ids(before), "after an expiry and a restart"
    assert [(file, file.stat().st_mtime_ns) for file in shelf.files()] == files

    shelf.delete(*ids(before)[:3])
    release_id = again["lease_id"]
    shelf.store.run(lambda transaction: leases.release(transaction, release_id))
    last = take(shelf)
    assert ids(export(shelf, last)) == ids(before) and all(map(shelf.get, ids(before))), "cleared, they are put anew"
    release(shelf, last)
    assert not set(ids(export(shelf, take(shelf, style="individual")))) & set(ids(before)), "other rows, other ids"


def test_they_outlive_lease_and_session_until_they_are_cleared_or_their_time_is_up(shelf: Shelf) -> None:
    branched_session(shelf.store)
    granted = take(shelf)
    its = ids(export(shelf, granted))
    lease = granted.lease
    assert lease is not None
    shelf.tick(after=LEASE_SECONDS - 1)
    shelf.store.run(lambda transaction: leases.renew(transaction, lease, seconds=1000))
    shelf.tick(after=900)
    shelf.store.run(lambda transaction: leases.acknowledge(transaction, lease))
    assert shelf.store.read(audit)["keys"] == 0, "the session's rows are gone"
    shelf.tick(after=SHARDS_AFTER_LEASE + 99)
    assert all(map(shelf.get, its))
    assert shelf.delete(its[0])[0] == 1
    shelf.tick(after=2)
    assert not any(map(shelf.get, its)) and shelf.files() == []
    assert shelf.store.read(audit)["shards"] == {"count": 0, "bytes": 0}


def test_exported_again_they_live_anew(shelf: Shelf) -> None:
    branched_session(shelf.store)
    its = ids(export(shelf, take(shelf)))
    shelf.tick(after=LEASE_SECONDS + SHARDS_AFTER_LEASE - 1)
    assert ids(export(shelf, take(shelf))) == its
    shelf.tick(after=LEASE_SECONDS + SHARDS_AFTER_LEASE - 1)
    assert all(map(shelf.get, its))
    shelf.tick(after=2)
    assert not any(map(shelf.get, its))


def test_an_export_that_fails_midway_leaves_the_shards_of_earlier_ones_alone(shelf: Shelf) -> None:
    branched_session(shelf.store)
    earlier = take(shelf)
    kept = ids(export(shelf, earlier))
    release(shelf, earlier)
    branched_session(shelf.store)
    branched_session(shelf.store)
    granted = take(shelf)
    last = granted.members[-1].session
    shelf.store.run(lambda transaction: transaction.execute("DELETE FROM turns WHERE session = ?", (last,)))
    shelf.store.run(
        lambda transaction: transaction.execute("DELETE FROM trajectories WHERE session = ? AND number = 2", (last,))
    )
    with pytest.raises(ExportGone):
        export(shelf, granted)
    assert shelf.store.read(audit)["shards"]["count"] == len(shelf.files()) == len(kept)
    assert all(map(shelf.get, kept))


@pytest.mark.parametrize("order", [([], ["failed"]), (["failed"], [])])
def test_untrained_rows_have_shards_of_their_own(shelf: Shelf, order: tuple[list[str], list[str]]) -> None:
    [(session, _)] = shelf.store.start()
    shelf.store.commit(session, name="a", prompt=[1], output=[2, 3])
    shelf.store.run(lambda transaction: close_session(transaction, session, CloseSession(outcome="failed")))
    masks = {}
    for train in order:
        granted = take(shelf, train=[*train])
        [row] = export(shelf, granted)["trajectories"][0]["rows"]
        masks[len(train)] = fetched(shelf, row["tensors"]["loss_mask"])
        release(shelf, granted)
    assert masks == {0: [0, 0, 0], 1: [0, 1, 1]}
