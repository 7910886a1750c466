"""POST /sessions/{id}/annotations keeps what a trainer says of turns, for as long as their session is there."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.test_conversation import page, say

from rolloutfleet.wire import Conversation

Json = Any
Numbers = Mapping[str, Sequence[float]]


def body(numbers: Numbers, notes: Mapping[str, str] | None = None) -> bytes:
    tensors = {name: np.array(values, dtype=np.float32) for name, values in numbers.items()}
    return save(tensors, metadata=None if notes is None else {"notes": json.dumps(notes)})


def annotate(session: AgentSession, content: bytes, *, at: ProxyProcess | None = None) -> httpx.Response:
    with (at or session.proxy).admin() as admin:
        return admin.post(f"/sessions/{session.session_id}/annotations", content=content)


def refused(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def a_turn(session: AgentSession, text: str = "One") -> tuple[str, list[float]]:
    """A new turn's id, and as many numbers as it has output tokens."""
    _, turn = say(session, {"role": "user", "content": text})
    count = next(each["completion_tokens"] for each in session.turns() if each["turn_id"] == turn)
    return turn, [index / 8 for index in range(count)]


def test_series_and_notes_are_shown_with_their_tokens(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    said, first = say(session, {"role": "user", "content": "One"})
    _, second = say(session, *said, {"role": "user", "content": "Two"})
    lengths = {turn["turn_id"]: turn["completion_tokens"] for turn in session.turns()}
    ours = [-0.5 * index for index in range(lengths[first])]
    gaps = [math.nan, *[1.0] * (lengths[second] - 1)]
    series = {f"{first}/logprobs": ours, f"{second}/advantages": gaps, f"{second}/kl.k3": [0.25] * lengths[second]}
    answer = annotate(session, body(series, {first: "good: <b>Grüße</b>"}))
    assert answer.status_code == 200
    assert answer.json() == {"session_id": session.session_id, "series": 3, "notes": 1, "ordinals": [0]}
    shown = page(session)
    Conversation.model_validate(shown)
    one, two = shown["turns"]
    new = one["new_prompt_tokens"]
    assert one["tokens"]["annotations"] == {"logprobs": [None] * new + ours} and one["note"] == "good: <b>Grüße</b>"
    new = two["new_prompt_tokens"]
    assert list(two["tokens"]["annotations"]) == ["advantages", "kl.k3"] and two["note"] is None
    assert two["tokens"]["annotations"]["advantages"] == [None] * (new + 1) + gaps[1:]
    later = page(session, branch=second, cursor=f"{second}:0:{new + 3}")["turns"][0]["tokens"]
    assert later["annotations"]["advantages"] == gaps[3:], "each page has those of its own tokens"
    part = page(session, branch=second, cursor=f"{first}:0:0")["turns"][0]["tokens"]
    assert len(part["annotations"]["logprobs"]) == len(part["input_ids"])


def test_what_has_the_same_name_is_replaced_and_nothing_else(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    turn, numbers = a_turn(session)
    assert annotate(session, body({f"{turn}/a": numbers, f"{turn}/b": numbers}, {turn: "first"})).status_code == 200
    other = [-each for each in numbers]
    assert annotate(session, body({f"{turn}/b": other}, {turn: "second"})).status_code == 200
    (shown,) = page(session)["turns"]
    new = shown["new_prompt_tokens"]
    assert {name: said[new:] for name, said in shown["tokens"]["annotations"].items()} == {"a": numbers, "b": other}
    assert shown["note"] == "second"


def test_a_trainers_feedback_is_no_use_of_a_session_and_touches_no_turn_lease_or_sum(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    turn, numbers = a_turn(session)
    session.post("reward", {"reward": 1.0})
    with proxy.admin() as admin:
        lease = admin.post("/export", json={"session_ids": [session.session_id]}).json()["lease_id"]
        before = proxy.audit(), session.turns(), session.show()
        assert annotate(session, body({f"{turn}/a": numbers}, {turn: "note"})).status_code == 200
        after = proxy.audit(), session.turns(), session.show()
        assert after[:2] == before[:2]
        assert after[2]["idle_seconds"] >= before[2]["idle_seconds"], "so it may go stale"
        assert {**after[2], "idle_seconds": 0} == {**before[2], "idle_seconds": 0}
        assert admin.post(f"/leases/{lease}/ack").json()["acknowledged"]


def test_they_leave_with_their_session(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    turn, numbers = a_turn(session)
    content = body({f"{turn}/a": numbers})
    with proxy.admin() as admin:
        admin.post(f"/sessions/{session.session_id}/close").raise_for_status()
        lease = admin.post("/export", json={"session_ids": [session.session_id]}).json()["lease_id"]
        assert annotate(session, content).status_code == 200, "closed and leased, and still there"
        admin.post(f"/leases/{lease}/ack").raise_for_status()
    assert annotate(session, content).status_code == 410
    deleted = proxy.start_session()
    with proxy.admin() as admin:
        admin.delete(f"/sessions/{deleted.session_id}").raise_for_status()
    assert refused(annotate(deleted, content))[:2] == (410, "session_deleted")
    nobody = AgentSession(proxy, f"{session.session_id}0", "", "")
    assert refused(annotate(nobody, content))[:2] == (404, "session_unknown")


def test_what_does_not_fit_the_turns_is_refused_by_name_and_nothing_is_kept(proxy: ProxyProcess) -> None:
    session, other = proxy.start_session(), proxy.start_session()
    turn, numbers = a_turn(session)
    foreign, _ = a_turn(other)
    good = {f"{turn}/good": numbers}
    for series, notes, expected in (
        ({f"{turn}/a": numbers[1:]}, {}, (400, "invalid_request", f"{turn}/a")),
        ({f"{turn}/a": [*numbers, 0.0]}, {}, (400, "invalid_request", f"{turn}/a")),
        ({f"{turn}/a": [math.inf, *numbers[1:]]}, {}, (400, "invalid_request", f"{turn}/a")),
        ({f"{foreign}/a": numbers}, {}, (404, "turn_unknown", f"{foreign}/a")),
        ({}, {"turn-of-nobody": "x"}, (404, "turn_unknown", "notes")),
        ({}, {turn: "é" * 2049}, (400, "invalid_request", "notes")),
        ({f"{turn}/{at}": numbers for at in range(16)}, {}, (400, "invalid_request", turn)),
    ):
        answer = annotate(session, body(good | series, {turn: "kept?"} | notes))
        assert refused(answer) == expected, answer.text
        assert not any(character in answer.text for character in "\x00"), answer.text
    (shown,) = page(session)["turns"]
    assert shown["tokens"]["annotations"] == {} and shown["note"] is None
    assert annotate(session, body({f"{turn}/{at}": numbers for at in range(16)}, {turn: "é" * 2048})).status_code == 200
    assert refused(annotate(session, body(good)))[:2] == (400, "invalid_request"), "a seventeenth, in a later call"
    assert annotate(session, body({f"{turn}/7": numbers})).status_code == 200


def test_a_call_has_16_mib_at_the_most(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    turn, _ = a_turn(session)
    answer = annotate(session, bytes((16 << 20) + 1))
    assert refused(answer)[:2] == (413, "body_too_large")
    most = body({f"{turn}/a": [0.0] * ((16 << 20) // 4 - 1000)})
    assert refused(annotate(session, most)) == (400, "invalid_request", f"{turn}/a"), "read, and compared"


def test_it_takes_the_admins_key(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    turn, numbers = a_turn(session)
    with proxy.admin() as admin:
        path = f"/sessions/{session.session_id}/annotations"
        own = {"authorization": f"Bearer {session.api_key}"}
        assert admin.post(path, content=body({f"{turn}/a": numbers}), headers=own).status_code == 403


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("annotations"), beside=shared, proxies=2) as running:
        yield running


def test_any_proxy_passes_them_on_and_a_dump_brings_them_back(two: Fleet) -> None:
    proxy, other = two.proxies
    session = proxy.start_session(here=True)
    said, first = say(session, {"role": "user", "content": "One"})
    session.post("reward", {"reward": 1.0})
    _, second = say(session, *said, {"role": "user", "content": "Two"})
    numbers = {turn["turn_id"]: [0.125] * turn["completion_tokens"] for turn in session.turns()}
    series = {f"{turn}/ours": values for turn, values in numbers.items()}
    assert annotate(session, body(series, {first: "a note"}), at=other).json()["ordinals"] == [0]
    shown = [(turn["turn_id"], turn["tokens"]["annotations"], turn["note"]) for turn in page(session)["turns"]]
    with proxy.admin() as admin:
        proxy.drain("empty", mode="cordon").raise_for_status()
        assert admin.post("/dumps").json()["reclaimed"] == 1
        admin.delete("/drain").raise_for_status()
        names = [dump["name"] for dump in admin.get("/dumps").json()["dumps"]]
        assert len(names) == 2
        assert admin.get(f"/sessions/{session.session_id}/conversation").status_code == 410
        assert annotate(session, body(series)).status_code == 410
        for name in reversed(names):
            answer = admin.post("/dumps/import", json={"names": [name]})
            assert answer.status_code == 200, answer.text
        after = page(session)["turns"]
        assert [(turn["turn_id"], turn["tokens"]["annotations"], turn["note"]) for turn in after] == shown
        assert annotate(session, body({}, {second: "another"})).status_code == 200
        assert proxy.audit()["balanced"]


def test_they_take_room_like_all_that_is_kept(tmp_path: Path, shared: Fleet) -> None:
    with running_fleet(tmp_path, beside=shared, settings={"sessions": {"limits": {"bytes": "6Mi"}}}) as fleet:
        session = fleet.proxy.start_session()
        turn, numbers = a_turn(session)
        full = body({f"{turn}/a": [0.0] * (6 << 18)})
        assert refused(annotate(session, full))[:2] == (429, "no_room")
        assert annotate(session, body({f"{turn}/a": numbers})).status_code == 200
