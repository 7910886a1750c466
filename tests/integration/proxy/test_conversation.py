"""GET /sessions/{id}/conversation shows what was rendered and sampled, branch by branch, and changes nothing."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, ProxyProcess
from tests.integration.proxy.test_turns import TOOLS
from tests.waiting import PATIENCE, until

from rolloutfleet.wire import Conversation

Json = Any


def say(session: AgentSession, *messages: Json, **options: Json) -> tuple[list[Json], Json]:
    """The messages with the answer behind them, and the answer's id."""
    reply = session.raw_chat({"model": "simulated", "messages": list(messages), "max_tokens": 40} | options)
    assert reply.status_code == 200, reply.text
    return [*messages, reply.json()["choices"][0]["message"]], reply.json()["id"]


def page(session: AgentSession, **query: Json) -> Json:
    with session.proxy.admin() as admin:
        answer = admin.get(f"/sessions/{session.session_id}/conversation", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def pages(session: AgentSession, **query: Json) -> Iterator[Json]:
    while True:
        found = page(session, **query)
        yield found
        if found["cursor"] is None:
            return
        query["cursor"] = found["cursor"]


def test_a_branch_is_shown_with_its_messages_and_tokens(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    system = {"role": "system", "content": "Be brief."}
    said, first = say(session, system, {"role": "user", "content": "Grüße 🙂"}, tools=TOOLS)
    said, second = say(session, *said, {"role": "user", "content": "And now?"}, tools=TOOLS)
    shown = page(session)
    Conversation.model_validate(shown)
    assert shown["branch"] == second and shown["cursor"] is None
    assert [turn["turn_id"] for turn in shown["turns"]] == [first, second]
    messages = [each for turn in shown["turns"] for each in turn["messages"]]
    assert [each["index"] for each in messages] == list(range(5))
    assert [each["message"]["role"] for each in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["message"]["content"] == "Grüße 🙂"
    assert shown["turns"][0]["tools"] == TOOLS and shown["turns"][1]["tools"] is None
    for turn, captured in zip(shown["turns"], session.turns(), strict=True):
        tokens, new = turn["tokens"], turn["new_prompt_tokens"]
        assert tokens["input_ids"][new:] == captured["output_ids"]
        assert tokens["logprobs"][new:] == captured["logprobs"] and not any(tokens["logprobs"][:new])
        assert tokens["versions"] == [-1] * new + captured["versions"]
        assert tokens["loss_mask"] == [0] * new + [1] * len(captured["output_ids"])
        assert set(turn["timing"]) == {"queue", "tokenise_in", "pause", "engine", "tokenise_out"}
        assert sum(turn["timing"].values()) > 0
    text = "".join(piece or "" for piece in shown["turns"][0]["tokens"]["texts"])
    assert "Be brief." in text and "Grüße 🙂" in text


def test_a_character_split_over_tokens_is_shown_once(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    say(session, {"role": "user", "content": "🙂🦊語"})
    texts = page(session)["turns"][0]["tokens"]["texts"]
    assert None in texts and "\ufffd" not in "".join(piece or "" for piece in texts)


def test_each_branch_is_shown_for_itself(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    said, first = say(session, {"role": "user", "content": "One"})
    _, second = say(session, *said, {"role": "user", "content": "Two"})
    _, other = say(session, {"role": "user", "content": "Another"}, *said[1:], {"role": "user", "content": "Two"})
    assert [turn["turn_id"] for turn in page(session)["turns"]] == [other]
    branch = page(session, branch=second)["turns"]
    assert [turn["turn_id"] for turn in branch] == [first, second]
    assert page(session)["turns"][0]["branch_reason"] == {"message": 0, "field": "content"}
    assert [turn["turn_id"] for turn in page(session, branch=second, cursor=second)["turns"]] == [second]


def test_an_outline_has_the_turns_of_all_branches_without_what_is_long(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    said, first = say(session, {"role": "user", "content": "One " * 5000}, tools=TOOLS)
    _, second = say(session, *said, {"role": "user", "content": "Two"}, tools=TOOLS)
    _, other = say(session, {"role": "user", "content": "Another"})
    until(lambda: page(session)["turns"][0]["delivered"])  # noted a moment after the answer
    outline = page(session, outline=True)
    Conversation.model_validate(outline)
    assert [turn["turn_id"] for turn in outline["turns"]] == [first, second, other] and outline["cursor"] is None
    whole = {
        turn["turn_id"]: turn for each in (*pages(session, branch=second), page(session)) for turn in each["turns"]
    }
    empty: Json = {name: [] for name in ("input_ids", "texts", "logprobs", "versions", "loss_mask")}
    left_out = {
        "tools": None,
        "template_kwargs": None,
        "messages": [],
        "tokens": {"start": 0, "annotations": {}} | empty,
    }
    assert outline["turns"] == [whole[name] | left_out for name in (first, second, other)]
    assert [turn["turn_id"] for turn in page(session, outline=True, cursor=second)["turns"]] == [second, other]
    assert [turn["turn_id"] for turn in page(session, outline=True, branch=second)["turns"]] == [first, second]


def test_an_outline_goes_on_on_further_pages(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    names = [say(session, {"role": "user", "content": f"Turn {number}"}, max_tokens=1)[1] for number in range(258)]
    found = list(pages(session, outline=True))
    assert [len(each["turns"]) for each in found] == [256, 2]
    assert [turn["turn_id"] for each in found for turn in each["turns"]] == names


def test_a_page_begins_at_any_message_and_token(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    _, name = say(session, {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count. " * 50})
    (whole,) = page(session)["turns"]
    (part,) = page(session, cursor=f"{name}:1:20")["turns"]
    assert part["messages"] == whole["messages"][1:] and part["tokens"]["start"] == 20
    assert part["tokens"]["input_ids"] == whole["tokens"]["input_ids"][20:]
    (neither,) = page(session, cursor=f"{name}:9999999999:9999999999")["turns"]
    assert neither["messages"] == [] and neither["tokens"]["input_ids"] == []


def test_pages_hold_4096_tokens_and_cut_no_character(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    said, _ = say(session, {"role": "user", "content": "🙂 wörd " * 3000})
    say(session, *said, {"role": "user", "content": "more " * 3000})
    found = list(pages(session))
    assert len(found) > 3
    ids: dict[str, list[int]] = {}
    for each in found:
        assert sum(len(turn["tokens"]["input_ids"]) for turn in each["turns"]) <= 4096
        for turn in each["turns"]:
            tokens = turn["tokens"]
            assert tokens["start"] == len(ids.setdefault(turn["turn_id"], []))
            assert not tokens["texts"] or tokens["texts"][0] is not None
            assert not any("\ufffd" in piece for piece in tokens["texts"] if piece)
            ids[turn["turn_id"]] += tokens["input_ids"]
    for turn in session.turns():
        assert ids[turn["turn_id"]][-turn["completion_tokens"] :] == turn["output_ids"]
    assert sum(len(turn["messages"]) for each in found for turn in each["turns"]) == 4


def test_messages_that_are_too_large_for_a_page_come_on_later_ones(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    # The chat format does not write this field, so it fills no context.
    large = [{"role": "user", "content": "x", "annotations": "y" * 600_000} for _ in range(3)]
    huge = {"role": "user", "content": "z" * 1000, "annotations": "y" * 1_200_000}
    say(session, *large, huge)
    found = list(pages(session))
    assert len(found) == 2 and all(len(str(each)) < 3_000_000 for each in found)
    messages = [each for part in found for turn in part["turns"] for each in turn["messages"]]
    assert [each["index"] for each in messages] == list(range(5))
    assert [each["message"] for each in messages[:3]] == large
    assert messages[3]["message"] == {"role": "user", "content": "z" * 1000} and messages[3]["cut"] > 1_200_000


def test_what_was_exported_and_acknowledged_is_shown_with_its_times(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    said, _ = say(session, {"role": "user", "content": "One"})
    session.post("reward", {"reward": 1.0})
    say(session, *said, {"role": "user", "content": "Two"})
    with proxy.admin() as admin:
        lease = admin.post("/export", json={"session_ids": [session.session_id]}).json()["lease_id"]
        (leased,) = page(session)["turns"][0]["leases"]
        assert leased["lease_id"] == lease and leased["state"] == "open" and leased["acknowledged_at"] is None
        assert admin.post(f"/leases/{lease}/ack").status_code == 200
    first, second = page(session)["turns"]
    (leased,) = first["leases"]
    assert leased["state"] == "acknowledged" and leased["acknowledged_at"] >= leased["leased_at"] > 0
    assert first["trajectory_state"] == "acknowledged" and first["reward"] == 1.0
    assert second["leases"] == [] and second["trajectory_id"] is None


def test_a_viewer_is_no_caller(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    say(session, {"role": "user", "content": "One"})
    before = session.show()
    while session.show()["idle_seconds"] == before["idle_seconds"]:
        pass
    idle = session.show()["idle_seconds"]
    page(session)
    assert session.show()["idle_seconds"] >= idle


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"branch": "turn-unknown"}, 404),
        ({"cursor": "turn-unknown:0:0"}, 400),
        ({"cursor": "a:b"}, 400),
        ({"branch": ""}, 400),
    ],
)
def test_what_is_not_there_is_refused_by_name(proxy: ProxyProcess, query: dict[str, str], status: int) -> None:
    session = proxy.start_session()
    assert page(session) == {**page(session), "branch": None, "turns": [], "cursor": None}
    say(session, {"role": "user", "content": "One"})
    with proxy.admin() as admin:
        answer = admin.get(f"/sessions/{session.session_id}/conversation", params=query)
    assert answer.status_code == status and answer.json()["error"]["param"] == next(iter(query))


def test_it_takes_the_admins_key(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    with proxy.admin() as admin:
        path = f"/sessions/{session.session_id}/conversation"
        answer = admin.get(path, headers={"authorization": f"Bearer {session.api_key}"})
        assert answer.status_code == 403
        admin.delete(f"/sessions/{session.session_id}")
        assert admin.get(path).status_code == 410
        assert admin.get(f"{path[:-20]}x/conversation").status_code == 404


def test_a_crowd_of_viewers_is_told_to_wait_and_holds_up_no_call(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    say(session, {"role": "user", "content": "many words " * 4000})
    path = f"{proxy.url}/sessions/{session.session_id}/conversation"

    async def crowd() -> list[httpx.Response]:
        headers = {"authorization": f"Bearer {proxy.key}"}
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE) as client:
            return await asyncio.gather(*(client.get(path) for _ in range(100)))

    answers = asyncio.run(crowd())
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answers) - len(refused) >= 10 and refused
    assert all(answer.status_code == 429 and answer.headers["retry-after"] == "1" for answer in refused)
    assert {answer.json()["error"]["code"] for answer in refused} == {"too_many_viewers"}
    assert page(session)["turns"]
