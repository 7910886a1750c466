"""Disk first, answer second, as the kernel saw it."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import Fleet, running_fleet
from tests.printing import say
from tests.unit.proxy.shards.shelf import safetensors as one_tensor
from tests.waiting import until

from rolloutfleet.tensors import Form

CALLS = 12
"""Calls at a time: their turns share commits."""
ROUNDS = 3
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 60}

STRACE = ("strace", "-f", "-yy", "-s", "65536", "-e", "trace=fdatasync,fsync,pwrite64,write,writev,sendto,sendmsg")
_SYNCS = ("fdatasync", "fsync")
_LINE = re.compile(
    r"^(?P<thread>\d+) +"
    r"(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<name>\w+)\(\d+<(?P<file>TCP[^\]]*\]|[^>]*)>)"
)
_TURN = re.compile(r'"id":"(turn-\w+)"')
_FINISH = r"\"finish_reason\":\""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call. `began` and `ended` are its places in the tracer's one order of events."""

    name: str
    file: str
    """Its path; of a connection, the protocol and both addresses."""
    text: str
    began: int
    ended: int
    succeeded: bool


def system_calls(trace: Path) -> list[Call]:
    """What strace wrote, calls that were cut by other threads' joined again, in order of their beginning."""
    calls: list[Call] = []
    open_calls: dict[str, tuple[int, Call]] = {}
    with trace.open(errors="replace") as lines:
        for number, line in enumerate(lines):
            found = _LINE.match(line)
            if found is None:
                continue
            if found["resumed"]:
                at, begun = open_calls.pop(found["thread"])
                calls[at] = Call(begun.name, begun.file, begun.text, begun.began, number, _succeeded(line))
                continue
            call = Call(found["name"], found["file"], line, number, number, _succeeded(line))
            if line.rstrip().endswith("<unfinished ...>"):
                open_calls[found["thread"]] = len(calls), call
            calls.append(call)
    return calls


def _succeeded(line: str) -> bool:
    return not line.rpartition("= ")[2].startswith("-")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Path]]:
    """A fleet whose proxy runs under strace, and what strace writes."""
    folder = tmp_path_factory.mktemp("traced")
    with running_fleet(folder, engine_options=("--token-latency", "0.001"), start_proxies=False) as fleet:
        fleet.proxy.start(*STRACE, "-o", str(folder / "trace"))
        yield fleet, folder / "trace"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_turn_is_on_disk_before_its_answer_leaves(
    traced: tuple[Fleet, Path], stream: bool, request: pytest.FixtureRequest
) -> None:
    fleet, trace = traced
    sessions = [fleet.proxy.start_session() for _ in range(CALLS)]
    turns: list[str] = []
    with ThreadPoolExecutor(CALLS) as pool:
        for _ in range(ROUNDS):
            replies = list(pool.map(lambda session: session.raw_chat({**CHAT, "stream": stream}), sessions))
            assert [reply.status_code for reply in replies] == [200] * CALLS
            turns += [_TURN.findall(reply.text)[0] for reply in replies]
    calls = written_by(trace, turns)
    early = [assert_on_disk_first(calls, turn, stream=stream, port=fleet.proxy.port) for turn in turns]
    # One whose text was all there by then may have none; a busy machine has several of those.
    assert any(early) == stream, "it streams"
    commits = sum(is_sync(call) for call in calls)
    how = "finish reasons" if stream else "answers"
    say(request, f"{len(turns)} {how} behind their turns' fdatasync ({commits} of them so far)")


def written_by(trace: Path, turns: list[str]) -> list[Call]:
    """The calls so far; strace's file may lag a little behind what its tracees did."""

    def calls_with_every_answer() -> list[Call]:
        calls = system_calls(trace)
        answered = "".join(call.text for call in calls if call.file.startswith("TCP"))
        return calls if all(turn in answered for turn in turns) else []

    found: list[Call] = until(calls_with_every_answer)
    return found


def assert_on_disk_first(calls: list[Call], turn: str, *, stream: bool, port: int) -> bool:
    """Nothing of its end leaves before the turn is on disk. Returns whether anything of it does."""
    written = [call for call in calls if call.name == "pwrite64" and call.file.endswith("-wal") and turn in call.text]
    assert written, "the turn went to the write-ahead log"
    stored = written[0]
    synced = next((call for call in calls if is_sync(call) and call.began > stored.ended), None)
    assert synced is not None, "nothing was synced after it"
    assert stored.succeeded and synced.succeeded
    answering = {call.file for call in calls if call.file.startswith(f"TCP:[127.0.0.1:{port}->") and turn in call.text}
    assert len(answering) == 1, "each call has its own connection"
    writes = [call for call in calls if call.file in answering]
    before = [call for call in writes if call.began < synced.ended]
    assert not any(_FINISH in call.text or "[DONE]" in call.text for call in before)
    assert stream or not before
    assert any(_FINISH in call.text for call in writes)
    return any(turn in call.text for call in before)


def is_sync(call: Call) -> bool:
    return call.name in _SYNCS and call.file.endswith("-wal")


def test_a_shard_is_on_disk_before_its_row_and_its_row_before_the_answer(traced: tuple[Fleet, Path]) -> None:
    fleet, trace = traced
    with fleet.proxy.admin() as admin:
        body = one_tensor(Form("uint8", (7,)), b"tensor!")
        assert admin.put("/shards/turn-of-a-shard", content=body).status_code == 201
    calls = written_by(trace, ["turn-of-a-shard"])
    [content] = [call for call in calls if call.name in _SYNCS and call.file.endswith(".safetensors.part")]
    folder = next(call for call in calls if call.name in _SYNCS and call.file.endswith("/state/shards"))
    row = next(call for call in calls if call.file.endswith("-wal") and "turn-of-a-shard" in call.text)
    synced = next(call for call in calls if is_sync(call) and call.began > row.ended)
    sent = next(call for call in calls if call.file.startswith("TCP") and "turn-of-a-shard" in call.text)
    order = [content, folder, row, synced, sent]
    assert all(call.succeeded for call in order)
    assert all(one.ended < after.began for one, after in pairwise(order))
