"""Promise 6 on a real proxy: what nobody uses is dumped and freed, what somebody uses is not, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save as one_tensor
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.cleaning import CHAT, LIVES, SOON, dump_folder, is_gone, talk
from tests.waiting import until

from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.reading import decode
from rolloutfleet.errors import INVALID_KEY, SESSION_CLOSED, SESSION_DELETED, SESSION_RECLAIMED

FAR = np.arange(300_000, dtype=np.float32).reshape(300, -1)
NEAR = np.array([1, 2, 3], dtype=np.int64)


def dumps(proxy: ProxyProcess, session: AgentSession) -> dict[str, Any]:
    """The session's dumps by what their names end with, each of them verified."""
    found = {}
    for file in dump_folder(proxy).glob(f"{session.session_id}-*"):
        with file.open("rb") as opened:
            assert verify(opened, name=file.name) == []
        found[file.name.removeprefix(f"{session.session_id}-")] = decode(file.read_bytes())
    return found


def own_turns(dump: Any) -> list[str]:
    return [turn.turn_id for turn in dump.turns if not turn.context]


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    """A fleet that cleans up soon."""
    with running_fleet(tmp_path_factory.mktemp("cleaned"), beside=shared, settings={"sessions": SOON}) as fleet:
        yield fleet


@pytest.fixture
def proxy(cleaned: Fleet) -> ProxyProcess:
    return cleaned.proxy


def test_a_dump_says_which_turns_were_sampled_under_a_grammar(proxy: ProxyProcess) -> None:
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
    grammars: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"regex": "[ab]{6}"}, "regex"),
        ({"ebnf": "root ::= [ab] [ab]"}, "ebnf"),
        ({"tools": [tool], "tool_choice": "required"}, "structural_tag"),
    ]
    session = proxy.start_session(stale_after=LIVES)
    for asked, _ in grammars:
        assert session.raw_chat({**CHAT, **asked}).status_code == 200
    until(lambda: is_gone(session))
    turns = [turn for dump in dumps(proxy, session).values() for turn in dump.turns]
    assert [(turn.extras or {}).get("constrained") for turn in turns] == [kind for _, kind in grammars]


def test_a_stale_session_is_in_files_and_nowhere_else(cleaned: Fleet, proxy: ProxyProcess) -> None:
    before = proxy.audit()
    session = proxy.start_session(task_id="task", metadata={"seed": 7}, stale_after=LIVES)
    first = talk(session, turns=2)
    session.post("reward", {"reward": 0.5})
    rest = talk(session)
    kept = {turn["turn_id"]: turn for turn in session.turns()}
    until(lambda: is_gone(session))

    held = dumps(proxy, session)
    assert sorted(held) == ["active.json", "trajectory-1.json"]
    assert own_turns(held["trajectory-1.json"]) == first and own_turns(held["active.json"]) == rest
    head = held["trajectory-1.json"].head
    assert (head.reason, head.session.task_id, head.session.metadata) == ("stale", "task", {"seed": 7})
    for turn in (*held["trajectory-1.json"].turns, *held["active.json"].turns):
        assert turn.output_ids.numpy().tolist() == kept[turn.turn_id]["output_ids"]
        assert turn.logprobs.numpy().tolist() == kept[turn.turn_id]["logprobs"]
        assert turn.versions.numpy().tolist() == kept[turn.turn_id]["versions"]
        assert turn.reward == kept[turn.turn_id]["reward"]

    after = proxy.audit()
    assert after["balanced"]
    assert after["turns"]["dumped"] == before["turns"]["dumped"] + 3
    assert after["sessions"]["dumped"] == before["sessions"]["dumped"] + 1
    assert after["turns"]["live"] == before["turns"]["live"] and after["keys"] == before["keys"]
    caches = proxy.stats()["caches"]
    assert (caches["sessions"], caches["ids"]) == (0, 0)


def test_a_start_made_again_is_told_what_became_of_its_sessions(proxy: ProxyProcess) -> None:
    with proxy.admin() as admin:

        def start(key: str) -> httpx.Response:
            return admin.post("/sessions", json={"stale_after": LIVES}, headers={"idempotency-key": key})

        reclaimed, closed, deleted = (
            AgentSession(proxy, started["session_id"], started["api_key"], started["base_url"])
            for started in (start(key).json() for key in ("reclaimed", "closed", "deleted"))
        )
        talk(reclaimed)
        assert closed.post("close").status_code == 200
        assert admin.delete(f"/sessions/{deleted.session_id}").status_code == 204
        until(lambda: is_gone(reclaimed))
        told = start("reclaimed")
        error = told.json()["error"]
        assert (told.status_code, error["code"], error["reason"]) == (410, SESSION_RECLAIMED, "stale"), told.text
        assert error["dumps"] == [f"{reclaimed.session_id}-active.json"]
        codes = [(again.status_code, again.json()["error"]["code"]) for again in map(start, ("closed", "deleted"))]
        assert codes == [(410, SESSION_CLOSED), (410, SESSION_DELETED)]


def test_later_calls_are_told_why_and_where(proxy: ProxyProcess) -> None:
    session = proxy.start_session(stale_after=LIVES)
    talk(session)
    until(lambda: is_gone(session))
    with proxy.admin() as admin:
        replies = [
            session.raw_chat(CHAT),
            httpx.post(
                f"{proxy.url}/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {session.api_key}"}
            ),
            *(
                session.post(path, body)
                for path, body in (("reward", {"reward": 1.0}), ("touch", None), ("close", None))
            ),
            admin.get(f"/sessions/{session.session_id}/turns"),
            admin.delete(f"/sessions/{session.session_id}"),
        ]
    for reply in replies:
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (410, SESSION_RECLAIMED), reply.text
        assert error["reason"] == "stale" and error["dumps"] == [f"{session.session_id}-active.json"]
        assert error["dumps"][0] in error["message"]
    with proxy.admin() as admin:
        asked = admin.post("/export", json={"session_ids": [session.session_id]}).json()
    assert asked["sessions"] == [{"session_id": session.session_id, "status": "gone"}]
    unknown = httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer nobody's"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (401, INVALID_KEY)


def test_what_is_used_is_spared(proxy: ProxyProcess) -> None:
    """By calls, also those that fail; by touches and rewards. What only looks doesn't count."""
    touched, called, failing, looked = (proxy.start_session(stale_after=LIVES) for _ in range(4))
    own = proxy.start_session(stale_after=60)

    def used_until_the_last_is_gone() -> bool:
        assert touched.post("touch").status_code == 200
        talk(called)
        assert failing.raw_chat({**CHAT, "max_tokens": 10**9}).status_code == 400
        return is_gone(looked)

    until(used_until_the_last_is_gone)
    assert not any(is_gone(one) for one in (touched, called, failing, own))
    own.post("close")


def test_a_call_longer_than_the_patience_is_never_stale(cleaned: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session(stale_after=LIVES)
    cleaned.engine.fault("slow", seconds=2 * LIVES)
    try:
        talk(session)
    finally:
        cleaned.engine.clear_faults()
    assert len(session.turns()) == 1


def test_shards_go_with_their_session(tmp_path: Path, shared: Fleet) -> None:
    """Its own and those that its metadata refers to. While their owner is down nothing is removed."""
    with running_fleet(tmp_path, beside=shared, proxies=2, settings={"sessions": SOON}) as fleet:
        mine, other = fleet.proxies
        with other.admin() as admin:
            reference = admin.put("/shards/far", params={"ttl": 600}, content=one_tensor({"far": FAR})).json()
        other.kill()
        session = mine.start_session(here=True, metadata={"image": reference}, stale_after=LIVES)
        [turn] = talk(session)
        with mine.admin() as admin:
            tied = {"session_id": session.session_id}
            assert admin.put("/shards/near", params=tied, content=one_tensor({"near": NEAR})).status_code == 201
        stats = until(lambda: (now := mine.stats())["dump"]["failing"] and now)
        assert "far" in stats["dump"]["error"]
        (file,) = dump_folder(mine).glob(f"{session.session_id}-*")
        assert "it is incomplete: shards are missing: far" in verify_file(file)
        assert len(session.turns()) == 1 and mine.audit()["shards"]["count"] == 1

        other.start()
        until(lambda: is_gone(session))
        held = dumps(mine, session)["active.json"]
        assert own_turns(held) == [turn]
        tensors = {shard.shard_id: shard.tensor.numpy() for shard in held.shards}
        assert sorted(tensors) == ["far", "near"]
        assert (tensors["far"] == FAR).all() and (tensors["near"] == NEAR).all()
        assert mine.audit()["shards"]["count"] == 0 and other.audit()["shards"]["count"] == 1
        assert mine.audit()["balanced"]


def test_without_a_folder_they_go_all_the_same_as_the_start_said(tmp_path: Path, shared: Fleet) -> None:
    with running_fleet(tmp_path, beside=shared, settings={"sessions": {**SOON, "dump": {"path": ""}}}) as fleet:
        proxy = fleet.proxy
        until(lambda: "stale sessions are discarded" in proxy.log.read_text())
        session = proxy.start_session(stale_after=LIVES)
        talk(session, turns=2)
        until(lambda: is_gone(session))
        assert session.raw_chat(CHAT).json()["error"]["dumps"] == []
        audit = proxy.audit()
        assert audit["balanced"] and audit["turns"]["discarded"] == {"no_dump_path": 2}
        assert not dump_folder(proxy).exists() or list(dump_folder(proxy).iterdir()) == []


def verify_file(file: Path) -> list[str]:
    with file.open("rb") as opened:
        return verify(opened, name=file.name)
