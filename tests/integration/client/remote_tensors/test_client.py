"""Tensors kept by real proxies: put, fetched, shared, given back, through deaths and lost answers."""

import contextlib
import json
import logging
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import suspended
from tests.fleets import ProxyProcess, running_fleet
from tests.integration.client.remote_tensors.keepers import keeping
from tests.integration.proxy.shard_calls import talked
from tests.processes import free_port
from tests.waiting import PATIENCE

from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.remote_tensors import (
    FetchBuffer,
    OwnerUnavailable,
    Refused,
    RemoteTensor,
    RemoteTensors,
    ShardMismatch,
    ShardsMissing,
    UnknownOwner,
    client,
)
from rolloutfleet.remote_tensors.shard_client import ShardClient
from rolloutfleet.tensors import CODES, Form
from rolloutfleet_proxy.failpoints import AFTER_COMMIT, BEFORE_COMMIT, VARIABLE

NONE = {"count": 0, "bytes": 0, "orphans": 0}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProxyProcess]]:
    with keeping(tmp_path_factory.mktemp("shards"), proxies=2) as proxies:
        yield proxies


@pytest.fixture
def tensors(two: list[ProxyProcess]) -> Iterator[RemoteTensors]:
    """Everything that a test put is gone from both proxies at its end, and from the buffer."""
    with at(two) as made:
        yield made
    assert [proxy.audit()["shards"] for proxy in two] == [NONE, NONE]


def at(proxies: Sequence[ProxyProcess], **options: Any) -> RemoteTensors:
    options = {"framework": "numpy", "buffer": FetchBuffer(), **options}
    return RemoteTensors([proxy.url for proxy in proxies], proxies[0].key, **options)


def stats(tensors: RemoteTensors) -> dict[str, int]:
    return dict(tensors.fetch_buffer_stats()["controller"])


class Requests(list[list[str]]):
    """The ids of every request of a kind."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def sent(self, ids: list[str]) -> None:
        with self._more:
            self.append(ids)
            self._more.notify_all()

    def wait_for(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self) >= count, PATIENCE)


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Requests]:
    """Every request of a kind that is sent meanwhile."""
    seen = Requests()
    real: Callable[..., Any] = getattr(ShardClient, name)

    def counting(self: ShardClient, owner: str, named: Sequence[Any], *rest: Any) -> Any:
        seen.sent([each if isinstance(each, str) else each.shard_id for each in named])
        return real(self, owner, named, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ShardClient, name, counting)
        yield seen


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (3, 5)], ids=str)
def test_every_type_comes_back_bit_for_bit(tensors: RemoteTensors, shape: tuple[int, ...]) -> None:
    put = {}
    for dtype in CODES:
        form = Form(dtype, shape)
        data = bytes(at * 37 % 256 for at in range(form.nbytes))
        put[dtype] = Tensor(
            dtype=dtype, shape=shape, data=bytes(byte % 2 for byte in data) if dtype == "bool" else data
        )
    away = tensors.remotize(put)
    assert {name: (each.dtype, each.shape) for name, each in away.items()} == {name: (name, shape) for name in CODES}
    back = tensors.localize(pickle.loads(pickle.dumps(away)))
    for name, tensor in put.items():
        came = back[name] if isinstance(back[name], Tensor) else Tensor.of(back[name])
        assert came == tensor, name
    assert tensors.clear_batches(away).deleted.shards == len(CODES)


def test_a_structure_comes_back_as_it_was(tensors: RemoteTensors) -> None:
    batch = {
        "attention_mask": np.array([[1, 1, 0, 0], [1, 1, 1, 0]]),
        "input_ids": np.arange(8).reshape(2, 4),
        "rows": [(np.zeros(3, np.float16), "text"), None, {"deep": np.array(True)}],
        "reward": 1.5,
    }
    away = tensors.remotize(batch)
    assert away["reward"] == 1.5 and away["rows"][0][1] == "text" and away["input_ids"].shape == (2, 3)
    for structure in (away, json.loads(json.dumps(away, default=RemoteTensor.as_json))):
        back = tensors.localize(structure)
        np.testing.assert_array_equal(back["input_ids"], [[0, 1, 2], [4, 5, 6]])
        np.testing.assert_array_equal(back["attention_mask"], [[1, 1, 0], [1, 1, 1]])
        assert back["rows"][1] is None and back["rows"][2]["deep"]
    assert tensors.clear_batches(away).complete
    assert stats(tensors) == {"entries": 0, "bytes": 0}


def test_proxies_take_turns_and_each_is_asked_for_its_own(
    tensors: RemoteTensors, two: list[ProxyProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [tensors.put(np.full(1000, number)) for number in range(10)]
    assert [sum(each.owner == proxy.url for each in away) for proxy in two] == [5, 5]
    with counted(monkeypatch, "fetch") as requests:
        assert [int(each[0]) for each in tensors.fetch([*away, *away[::-1]])] == [*range(10), *range(9, -1, -1)]
        assert sorted(map(len, requests)) == [5, 5]
        tensors.fetch(away)
    assert len(requests) == 2
    assert stats(tensors) == {"entries": 10, "bytes": 80_000}
    assert tensors.clear_batches(away, [away[0]]).deleted.nbytes == 80_000
    with pytest.raises(ShardsMissing, match=away[3].shard_id):
        tensors.fetch([away[3]])


def test_requests_are_bounded(tensors: RemoteTensors, two: list[ProxyProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    away = tensors.remotize([np.zeros(1) for _ in range(600)], at=two[0].url)
    with counted(monkeypatch, "fetch") as requests:
        tensors.fetch(away)
    assert sorted(map(len, requests)) == [88, 256, 256]
    monkeypatch.setattr(client, "IDS_A_DELETE", 250)
    with counted(monkeypatch, "delete") as requests:
        assert tensors.clear_batches(away).deleted.shards == 600
    assert sorted(map(len, requests)) == [100, 250, 250]


def test_concurrent_fetches_of_a_shard_share_one_request(
    tensors: RemoteTensors, two: list[ProxyProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = tensors.put(np.arange(1000), at=two[0].url)
    together = threading.Barrier(16)

    def fetch() -> Any:
        together.wait(PATIENCE)
        return tensors.fetch([reference])[0]

    with counted(monkeypatch, "fetch") as requests, ThreadPoolExecutor(16) as threads:
        with suspended(two[0].stats()["pid"]):
            waiting = [threads.submit(fetch) for _ in range(16)]
            requests.wait_for(1)
        for each in waiting:
            np.testing.assert_array_equal(each.result(PATIENCE), np.arange(1000))
    assert requests == [[reference.shard_id]]
    tensors.clear_batches(reference)


def test_a_fetch_in_progress_does_not_bring_back_what_was_cleared(
    tensors: RemoteTensors, two: list[ProxyProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = tensors.put(np.arange(1000), at=two[0].url)
    with counted(monkeypatch, "fetch") as requests, ThreadPoolExecutor(1) as threads:
        with suspended(two[0].stats()["pid"]):
            waiting = threads.submit(tensors.fetch, [reference])
            requests.wait_for(1)
            assert tensors.clear_fetch_buffer([reference.shard_id]) == 0
        np.testing.assert_array_equal(waiting.result(PATIENCE)[0], np.arange(1000))
    assert stats(tensors) == {"entries": 0, "bytes": 0}
    # A fetch that begins after the clear is another one, and is kept.
    tensors.fetch([reference])
    assert stats(tensors)["entries"] == 1
    tensors.clear_batches(reference)


def test_fetches_and_clears_race_and_nothing_is_left(tensors: RemoteTensors, two: list[ProxyProcess]) -> None:
    """Eight threads fetch while two clear the same shards; whatever comes out of it, the last clear leaves nothing."""
    for _ in range(5):
        away = [tensors.put(np.full(500, number)) for number in range(20)]
        together = threading.Barrier(10)

        def fetch(away: list[RemoteTensor] = away, together: threading.Barrier = together) -> None:
            together.wait(PATIENCE)
            for number, reference in enumerate(away):
                with contextlib.suppress(ShardsMissing):
                    assert int(tensors.fetch([reference])[0][-1]) == number

        def clear(away: list[RemoteTensor] = away, together: threading.Barrier = together) -> None:
            together.wait(PATIENCE)
            for at in range(0, 20, 4):
                tensors.clear_batches(away[at : at + 4])

        with ThreadPoolExecutor(10) as threads:
            for each in [threads.submit(work) for work in (*(fetch,) * 8, clear, clear)]:
                each.result(PATIENCE)
        # The owner lost them before the buffer did: what was fetched in between was cleared after it.
        assert stats(tensors) == {"entries": 0, "bytes": 0}


def test_one_shard_that_is_missing_fails_alone(tensors: RemoteTensors) -> None:
    away = [tensors.put(np.full(3, number)) for number in range(6)]
    tensors.delete(away[2:4])
    with ThreadPoolExecutor(2) as threads:
        failing = threads.submit(tensors.fetch, away)
        with pytest.raises(ShardsMissing) as raised:
            failing.result(PATIENCE)
    assert set(raised.value.ids) <= {each.shard_id for each in away[2:4]}
    assert [int(each[0]) for each in tensors.fetch(away[:2] + away[4:])] == [0, 1, 4, 5]
    tensors.clear_batches(away)


def test_a_shard_that_is_not_what_the_reference_says_is_not_handed_out(tensors: RemoteTensors) -> None:
    reference = tensors.put(np.zeros((2, 3), np.float32))
    with pytest.raises(ShardMismatch, match="float32"):
        tensors.fetch([RemoteTensor(reference.shard_id, reference.owner, (3, 2), "float32")])
    with pytest.raises(ShardMismatch):
        tensors.fetch([RemoteTensor(reference.shard_id, reference.owner, (2, 3), "int32")])
    assert stats(tensors)["entries"] == 0
    tensors.clear_batches(reference)


def test_the_key_goes_to_the_fleets_proxies_alone(tensors: RemoteTensors) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        owner = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        reference = RemoteTensor("a", owner, (1,), "int64")
        for call in (lambda: tensors.fetch([reference]), lambda: tensors.put(np.zeros(1), at=owner)):
            with pytest.raises(UnknownOwner, match=owner):
                call()
        done = tensors.clear_batches(reference)
        assert not done.complete and owner in done.deleted.failures[owner]
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_scaling_is_followed(two: list[ProxyProcess]) -> None:
    known = [two[0].url]
    with RemoteTensors(lambda: known, two[0].key, framework="numpy", buffer=FetchBuffer()) as tensors:
        first = tensors.put(np.zeros(1))
        assert first.owner == two[0].url
        with at([two[1]]) as other:
            reference = other.put(np.ones(2))
        with pytest.raises(UnknownOwner):
            tensors.fetch([reference])
        known.append(two[1].url)  # It is looked for at once, whenever the addresses were found.
        np.testing.assert_array_equal(tensors.fetch([reference])[0], np.ones(2))
        assert tensors.clear_batches(first, reference).deleted.shards == 2


def test_the_addresses_are_not_asked_for_with_every_call(two: list[ProxyProcess]) -> None:
    asked: list[float] = []
    now = [0.0]

    def find() -> list[str]:
        asked.append(now[0])
        return [proxy.url for proxy in two]

    with RemoteTensors(find, two[0].key, framework="numpy", buffer=FetchBuffer()) as tensors:
        tensors._shards._clock = lambda: now[0]
        away = tensors.remotize([np.zeros(1)] * 20)
        tensors.localize(away)
        now[0] = 11.0
        again = tensors.put(np.zeros(1))
        assert tensors.clear_batches(away, again).complete
    assert asked == [0.0, 11.0]


def test_proxies_that_can_not_be_found_just_now_are_waited_for(two: list[ProxyProcess]) -> None:
    now = [0.0]

    def find() -> list[str]:
        if now[0]:
            raise ConnectionError("nobody answers")
        return [proxy.url for proxy in two]

    with RemoteTensors(find, two[0].key, framework="numpy", buffer=FetchBuffer()) as tensors:
        tensors._shards._clock = lambda: now[0]
        first = tensors.put(np.zeros(1))
        now[0] = 11.0
        assert tensors.clear_batches(first, tensors.put(np.zeros(1))).complete
        with pytest.raises(OwnerUnavailable, match="nobody answers"):
            tensors.fetch([RemoteTensor("a", "http://127.0.0.1:1", (1,), "int64")])


def test_a_shard_that_goes_while_a_batch_is_answered_takes_no_other_with_it(
    tensors: RemoteTensors, monkeypatch: pytest.MonkeyPatch, two: list[ProxyProcess]
) -> None:
    away = [tensors.put(np.full(3, number), at=two[0].url) for number in range(4)]
    # Its file goes and its row stays, as in the moment between the two.
    kept = Path(two[0].settings["state_dir"], "shards").iterdir()
    [gone] = [file for file in kept if np.full(3, 1).tobytes() in file.read_bytes()]
    gone.unlink()
    with ThreadPoolExecutor(1) as threads, counted(monkeypatch, "fetch") as requests:
        waiting = threads.submit(tensors.fetch, away)
        requests.wait_for(2)
        tensors.delete([away[1]])
        with pytest.raises(ShardsMissing) as raised:
            waiting.result(PATIENCE)
    assert raised.value.ids == (away[1].shard_id,)
    assert [int(each[0]) for each in tensors.fetch([away[0], *away[2:]])] == [0, 2, 3]
    tensors.clear_batches(away)


def test_a_wrong_key_is_said_at_once(two: list[ProxyProcess]) -> None:
    with RemoteTensors([two[0].url], "wrong", framework="numpy") as tensors, pytest.raises(Refused) as raised:
        tensors.put(np.zeros(1))
    assert raised.value.status == 401 and raised.value.code == "invalid_key"


def test_remotize_is_all_or_nothing(two: list[ProxyProcess], tmp_path: Path) -> None:
    with keeping(tmp_path, shard_limit=100_000) as [small], at([small]) as tensors:
        with pytest.raises(Refused) as raised:
            tensors.remotize([np.zeros(10), np.zeros(10), np.zeros(100_000), np.zeros(10)])
        assert raised.value.status == 413
        assert small.audit()["shards"] == NONE
        with pytest.raises(ValueError, match="complex128"):
            tensors.remotize([np.zeros(10), np.zeros(1, complex)])
        assert small.audit()["shards"] == NONE


def test_a_proxy_that_is_down_is_passed_over_by_puts(two: list[ProxyProcess]) -> None:
    urls = [f"http://127.0.0.1:{free_port()}", two[0].url]
    with RemoteTensors(urls, two[0].key, framework="numpy", buffer=FetchBuffer()) as tensors:
        away = [tensors.put(np.zeros(2)) for _ in range(4)]
        assert {each.owner for each in away} == {two[0].url}
        assert tensors.clear_batches(away).complete


def test_nothing_passed_does_nothing(monkeypatch: pytest.MonkeyPatch, tensors: RemoteTensors) -> None:
    reference = tensors.put(np.zeros(2))
    tensors.fetch([reference])
    with counted(monkeypatch, "delete") as requests:
        for done in (tensors.clear_batches(), tensors.clear_batches(None, [], {}, "text", {"x": np.zeros(2)})):
            assert done.ids == () and done.complete
    assert requests == [] and stats(tensors)["entries"] == 1
    tensors.clear_batches(reference)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ProxyProcess]:
    with keeping(tmp_path) as [proxy]:
        yield proxy


def test_a_fetch_waits_for_a_proxy_that_is_started_again(mortal: ProxyProcess) -> None:
    with at([mortal]) as tensors, ThreadPoolExecutor(1) as threads:
        away = tensors.remotize([np.full(100_000, number) for number in range(20)])
        mortal.kill()
        waiting = threads.submit(tensors.localize, away)
        mortal.start()
        assert [int(each[0]) for each in waiting.result(PATIENCE)] == list(range(20))
        assert tensors.clear_batches(away).complete
    assert mortal.audit()["shards"] == NONE


def test_an_owner_that_stays_away_is_named(mortal: ProxyProcess) -> None:
    with at([mortal], fetch_seconds=0.5) as tensors:
        reference = tensors.put(np.zeros(2))
        mortal.kill()
        with pytest.raises(OwnerUnavailable, match=mortal.url):
            tensors.fetch([reference])


@pytest.mark.parametrize("place", [BEFORE_COMMIT, AFTER_COMMIT])
def test_an_owner_killed_in_mid_delete_is_asked_until_it_acknowledges(
    mortal: ProxyProcess, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many small deletes, so that the commit in which it dies is one of theirs.
    monkeypatch.setattr(client, "IDS_A_DELETE", 1)
    with at([mortal], delete_seconds=120) as tensors, ThreadPoolExecutor(1) as threads:
        away = tensors.remotize([np.full(10, number) for number in range(200)])
        tensors.localize(away)
        mortal.kill()
        mortal.environment = {VARIABLE: f"{place}:12"}
        mortal.start()
        clearing = threads.submit(tensors.clear_batches, away)
        mortal.wait_until_killed(PATIENCE)
        assert not clearing.done()
        mortal.environment = {}
        mortal.start()
        done = clearing.result(PATIENCE)
        assert done.complete and len(done.ids) == 200 and tensors.undeleted == ()
        assert stats(tensors) == {"entries": 0, "bytes": 0}
    assert mortal.audit()["shards"] == NONE


def test_what_an_owner_did_not_acknowledge_is_seen_kept_in_mind_and_asked_for_again(
    two: list[ProxyProcess], mortal: ProxyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    both = [two[0], mortal]
    with at(both, delete_seconds=4.0) as tensors:
        away = [tensors.put(np.zeros(10), at=proxy.url) for proxy in both for _ in range(3)]
        tensors.fetch(away)
        mortal.kill()
        with caplog.at_level(logging.WARNING):
            done = tensors.clear_batches(away)
        assert not done.complete and done.deleted.shards == 3
        assert set(done.deleted.undeleted) == set(away[3:]) == set(tensors.undeleted)
        assert mortal.url in done.deleted.failures and mortal.url in caplog.text
        # This process gave them back all the same.
        assert stats(tensors) == {"entries": 0, "bytes": 0}
        assert set(tensors.clear_batches().deleted.undeleted) == set(away[3:])
        mortal.start()
        again = tensors.clear_batches()
        assert again.complete and again.deleted.shards == 3 and tensors.undeleted == ()
    assert [proxy.audit()["shards"]["count"] for proxy in both] == [0, 0]


class Ranks:
    """A role of several ranks, whose calls are plain functions here."""

    def __init__(self, ranks: int) -> None:
        self.buffers = [FetchBuffer() for _ in range(ranks)]
        self.told: list[list[str]] = []

    def clear_fetch_buffer(self, ids: list[str], /) -> object:
        self.told.append(ids)
        return [buffer.clear(ids) for buffer in self.buffers]

    def fetch_buffer_stats(self) -> list[dict[str, int]]:
        return [buffer.stats() for buffer in self.buffers]


class Broken(Ranks):
    def clear_fetch_buffer(self, ids: list[str], /) -> object:
        raise ConnectionError("rank 1 is gone")


class Blind(Ranks):
    def fetch_buffer_stats(self) -> list[dict[str, int]]:
        raise ConnectionError("nobody answers")


def test_every_role_is_drained_and_what_stays_is_said(
    tensors: RemoteTensors, two: list[ProxyProcess], caplog: pytest.LogCaptureFixture
) -> None:
    away, other = tensors.remotize([np.zeros(5), np.zeros(7)]), tensors.put(np.zeros(1000))
    roles = {"actor": Ranks(2), "critic": Broken(1), "blind": Blind(1), "reference": Ranks(2)}
    for role in roles.values():
        for buffer in role.buffers:
            with at(two, buffer=buffer) as rank:
                rank.fetch([*away, other] if role is roles["reference"] else away)
    with caplog.at_level(logging.WARNING):
        done = tensors.clear_batches(away, [away], roles=roles)
    ids = [each.shard_id for each in away]
    assert [role.told for role in roles.values()] == [[ids], [], [ids], [ids]]
    assert list(done.failed_roles) == ["critic"] and "rank 1 is gone" in done.failed_roles["critic"]
    assert not done.complete
    assert done.staying == {
        "critic[0]": {"entries": 2, "bytes": 96},
        "reference[0]": {"entries": 1, "bytes": 8000},
        "reference[1]": {"entries": 1, "bytes": 8000},
    }
    assert "reference[1]: 1" in caplog.text and "blind" in caplog.text
    caplog.clear()
    roles = {"actor": roles["actor"], "reference": roles["reference"]}
    assert tensors.clear_batches(other, roles=roles).staying == {}
    assert caplog.text == ""
    # What a broken role kept is bounded, and goes when it is told again.
    assert tensors.delete([]).undeleted == ()


def test_an_export_as_shards_is_fetched_by_what_its_json_says(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet, at([fleet.proxy]) as tensors:
        talked(fleet.proxy)
        with fleet.proxy.admin() as admin:
            taken = admin.post("/export", json={"as": "shards"}).raise_for_status()
            again = admin.post("/leases/" + taken.headers["lease-id"] + "/ack")
        assert again.is_success
        [row] = [row for trajectory in taken.json()["trajectories"] for row in trajectory["rows"]]
        local = tensors.localize(row["tensors"])
        assert local["input_ids"].dtype == np.int64 and len(local["input_ids"]) == len(local["logprobs"])
        assert tensors.clear_batches(taken.json()).complete
        assert fleet.proxy.audit()["shards"] == NONE
