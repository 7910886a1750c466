"""Calls of the Responses API are turns like all others: with the stock SDK, against a whole fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from tests.fleets import AgentSession, Fleet, ProxyProcess
from tests.integration.proxy.in_process import proxy_in_process
from tests.unit.proxy.dialects.openai_responses.responses import FIND, PATCH, SPAWN, events

Json = Any

TOOLS: list[Any] = [FIND, SPAWN, PATCH, {"type": "web_search"}]
HELLO: dict[str, Any] = {"model": "simulated", "input": "Hello?", "max_output_tokens": 300}


@pytest.fixture
def session(proxy: ProxyProcess) -> Iterator[AgentSession]:
    yield proxy.start_session()


def outputs(response: Response) -> list[Any]:
    """What an agent answers to a response's calls."""
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    return [
        {"type": kinds[item.type], "call_id": item.call_id, "output": f"result of {item.name}"}
        for item in response.output
        if item.type == "function_call" or item.type == "custom_tool_call"
    ]


def strictly(response: Response) -> Response:
    """The response, which is what its types say."""
    return Response.model_validate_json(response.to_json(), strict=True, extra="forbid")


def parents(session: AgentSession) -> list[tuple[str | None, Json]]:
    return [(turn["parent_id"], turn["branch_reason"]) for turn in session.turns()]


def ids(session: AgentSession) -> list[str]:
    return [turn["turn_id"] for turn in session.turns()]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_that_sends_all_items_back_extends_every_turn(session: AgentSession, streamed: bool) -> None:
    with session.client() as client:
        items: list[Any] = [{"role": "user", "content": "Find it."}]
        made = []
        for _ in range(4):
            asked: dict[str, Any] = {"model": "m", "instructions": "Be brief.", "input": items, "tools": TOOLS}
            response: Response
            if streamed:
                with client.responses.stream(**asked) as stream:
                    response = stream.get_final_response()
            else:
                response = strictly(client.responses.create(**asked))
            made.append(response.id)
            answers = outputs(response)
            items = [*items, *(item.to_dict() for item in response.output), *answers]
            if not answers:
                items.append({"role": "user", "content": "And now?"})
    assert made == [f"resp_{name}" for name in ids(session)]
    assert parents(session) == [(None, None), *((name, None) for name in ids(session)[:-1])]


def test_a_stream_is_what_is_shown_afterwards(session: AgentSession) -> None:
    with session.client() as client:
        for index in range(4):
            asked: dict[str, Any] = {"model": "m", "input": f"Do {index}.", "tools": TOOLS, "instructions": "Be brief."}
            with client.responses.stream(**asked, metadata={"a": "b"}) as stream:
                final = stream.get_final_response()
            shown = strictly(client.responses.retrieve(final.id))
            for field in ("id", "created_at", "model", "status", "usage", "instructions", "metadata"):
                assert getattr(shown, field) == getattr(final, field)
            assert [each.to_dict() for each in shown.output] == [
                {key: value for key, value in each.to_dict().items() if key != "parsed_arguments"}
                for each in _without_parsed(final).output
            ]


def _without_parsed(response: Response) -> Response:
    """Without what the SDK's stream adds to texts."""
    said = response.to_dict()
    for item in said["output"]:  # type: ignore[attr-defined]
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return Response.model_validate(said)


def test_a_response_that_was_deleted_is_shown_no_more_and_its_turn_stays(session: AgentSession) -> None:
    with session.client() as client:
        response = client.responses.create(**HELLO)
        client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError) as missing:
            client.responses.retrieve(response.id)
        assert missing.value.code == "response_unknown"
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(response.id)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(**HELLO, previous_response_id=response.id)
        assert refused.value.code == "previous_response_not_found"
        assert refused.value.param == "previous_response_id"
    assert [f"resp_{name}" for name in ids(session)] == [response.id]
    path = f"{session.base_url}/responses/{response.id}"
    gone = httpx.get(path, headers={"authorization": f"Bearer {session.api_key}"})
    assert gone.status_code == 404


def test_a_response_is_made_to_be_given_whole(session: AgentSession) -> None:
    with session.client() as client:
        response = client.responses.create(**HELLO)
    headers = {"authorization": f"Bearer {session.api_key}"}
    reply = httpx.get(f"{session.base_url}/responses/{response.id}?stream=true", headers=headers)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")


def test_a_call_goes_on_from_the_response_that_it_names(session: AgentSession) -> None:
    base: dict[str, Any] = {**HELLO, "instructions": "Be brief.", "tools": TOOLS}
    with session.client() as client:
        first = client.responses.create(**base)
        sibling = client.responses.create(**base)
        answers = outputs(first) or [{"role": "user", "content": "More."}]
        child = client.responses.create(**base | {"input": answers}, previous_response_id=first.id)
        other = client.responses.create(
            **base | {"input": outputs(sibling) or "More."}, previous_response_id=sibling.id
        )
        grandchild = client.responses.create(
            **base | {"input": outputs(child) or "More."}, previous_response_id=child.id
        )
    names = dict(zip(ids(session), parents(session), strict=True))
    found = [names[each.id.removeprefix("resp_")] for each in (first, sibling, child, other, grandchild)]
    expected = [None, None, first.id, sibling.id, child.id]
    assert [parent for parent, _ in found] == [each and each.removeprefix("resp_") for each in expected]
    assert [reason for _, reason in found] == [None] * 5
    assert grandchild.previous_response_id == child.id


def references(*responses: Response) -> list[Any]:
    return [{"type": "item_reference", "id": item.id} for response in responses for item in response.output]


def prompt_ids(response: Response) -> Any:
    return response.output[-1].to_dict()["prompt_token_ids"]


def test_items_that_are_named_are_the_same_prompt_as_those_that_are_sent(session: AgentSession) -> None:
    base: dict[str, Any] = {**HELLO, "instructions": "Be brief.", "tools": TOOLS}
    named: list[Any] = [{"role": "user", "content": "Find it."}]
    sent = list(named)
    with session.client(max_retries=0) as client:
        made = [client.responses.create(**base | {"input": named})]
        for number in range(3):
            more = [*outputs(made[-1]), {"role": "user", "content": f"And {number}?"}]
            named += [*references(made[-1]), *more]
            sent += [*(item.to_dict() for item in made[-1].output), *more]
            asked = {**base, "extra_body": {"return_token_ids": True}}
            made.append(client.responses.create(**asked | {"input": named}))
            again = client.responses.create(**asked | {"input": sent})
            assert prompt_ids(again) == prompt_ids(made[-1])
    turns = {f"resp_{turn['turn_id']}": (turn["parent_id"], turn["branch_reason"]) for turn in session.turns()}
    names = [response.id.removeprefix("resp_") for response in made]
    assert [turns[response.id] for response in made] == [(None, None), *((name, None) for name in names[:-1])]


def test_a_call_goes_on_from_the_turn_whose_items_it_names_and_no_equal_one(session: AgentSession) -> None:
    with session.client() as client:
        equal = [client.responses.create(**HELLO) for _ in range(3)]
        user = {"role": "user", "content": "Hello?"}
        more = {"role": "user", "content": "More."}
        children = [client.responses.create(**HELLO | {"input": [user, *references(each), more]}) for each in equal]
        # Of two turns the deeper one is gone on from, whichever is named.
        items = [user, *references(equal[0]), more, *(item.to_dict() for item in children[0].output), more]
        client.responses.create(**HELLO | {"input": items})
    assert len({each.output_text for each in equal}) == 1
    *by_name, last = [f"resp_{parent}" for parent, _ in parents(session)[3:]]
    assert by_name == [each.id for each in equal]
    assert last in [each.id for each in children]
    assert {reason and reason["field"] for _, reason in parents(session)} == {None}


def test_a_call_goes_on_from_a_response_and_names_items_of_others(session: AgentSession) -> None:
    with session.client() as client:
        first = client.responses.create(**HELLO)
        other = client.responses.create(**HELLO | {"input": "What else?"})
        more = {"role": "user", "content": "More."}
        asked = {**HELLO, "previous_response_id": first.id, "extra_body": {"return_token_ids": True}}
        named = client.responses.create(**asked | {"input": [more, *references(other), more]})
        sent = client.responses.create(**asked | {"input": [more, *(item.to_dict() for item in other.output), more]})
    assert prompt_ids(named) == prompt_ids(sent)
    assert parents(session)[2] == parents(session)[3]


@pytest.mark.parametrize("stream", [False, True])
def test_an_item_that_this_session_does_not_have_is_refused_and_changes_nothing(
    proxy: ProxyProcess, session: AgentSession, stream: bool
) -> None:
    with proxy.start_session().client() as client:
        elsewhere = client.responses.create(**HELLO)
    with session.client() as client:
        deleted, kept = (client.responses.create(**HELLO) for _ in range(2))
        client.responses.delete(deleted.id)
        beyond = {"type": "item_reference", "id": f"{kept.output[0].id}_7"}
        unknown = {"type": "item_reference", "id": "msg_none"}
        for reference in (*references(elsewhere), *references(deleted), beyond, unknown):
            items: Any = ["Hello?", *references(kept), reference]
            items[0] = {"role": "user", "content": items[0]}
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.create(**HELLO | {"input": items}, stream=stream)
            assert (refused.value.code, refused.value.param) == ("invalid_request", f"input[{len(items) - 1}].id")
            assert "send the item itself" in str(refused.value)
    assert len(session.turns()) == 2


def test_instructions_and_tools_are_not_inherited(session: AgentSession) -> None:
    base: dict[str, Any] = {**HELLO, "instructions": "Be brief.", "tools": [FIND]}
    with session.client() as client:
        first = client.responses.create(**base)
        more = {"input": [*outputs(first), {"role": "user", "content": "More."}], "previous_response_id": first.id}
        client.responses.create(**{**base, **more, "tools": [FIND, PATCH]})
        client.responses.create(**{**base, **more, "instructions": "Be thorough."})
        client.responses.create(**HELLO | more)
    reasons = [reason for _, reason in parents(session)]
    assert reasons[:3] == [None, {"message": None, "field": "tools"}, {"message": 0, "field": "content"}]
    assert reasons[3] == {"message": 0, "field": "role"}


def test_a_response_that_is_not_this_sessions_is_refused_and_changes_nothing(
    proxy: ProxyProcess, session: AgentSession
) -> None:
    elsewhere = proxy.start_session()
    with elsewhere.client() as client:
        other = client.responses.create(**HELLO)
    with session.client() as client:
        for name in (other.id, "resp_none", "none"):
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError) as refused:
                    client.responses.create(**HELLO, previous_response_id=name, stream=stream)
                assert refused.value.code == "previous_response_not_found"
    assert session.turns() == []


async def test_what_is_named_is_there_after_a_restart(fleet: Fleet, tmp_path: Path) -> None:
    async def agent(admin: httpx.AsyncClient, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=str(admin.base_url.join("/v1")), api_key=key, max_retries=0)

    async with proxy_in_process(fleet, tmp_path) as (_, admin):
        started = (await admin.post("/sessions", json={})).raise_for_status().json()
        async with await agent(admin, started["api_key"]) as client:
            kept = await client.responses.create(**HELLO)
            hidden = await client.responses.create(**HELLO)
            await client.responses.delete(hidden.id)
    async with proxy_in_process(fleet, tmp_path) as (_, admin):
        async with await agent(admin, started["api_key"]) as client:
            shown = await client.responses.retrieve(kept.id)
            assert [item.to_dict() for item in shown.output] == [item.to_dict() for item in kept.output]
            child = await client.responses.create(**HELLO | {"input": "More."}, previous_response_id=kept.id)
            user: Any = [{"role": "user", "content": text} for text in ("Hello?", "More.")]
            await client.responses.create(**HELLO | {"input": [user[0], *references(kept), user[1]]})
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(hidden.id)
        turns = (await admin.get(f"/sessions/{started['session_id']}/turns")).json()["turns"]
        assert [turns[index]["turn_id"] for index in (0, 2)] == [
            each.id.removeprefix("resp_") for each in (kept, child)
        ]
        assert turns[2]["parent_id"] == turns[3]["parent_id"] == turns[0]["turn_id"]


async def test_answers_referred_to_are_bounded_as_a_body_is(fleet: Fleet, tmp_path: Path) -> None:
    limit = 4_000
    async with proxy_in_process(fleet, tmp_path, body_limit=limit) as (_, admin):
        started = (await admin.post("/sessions", json={})).raise_for_status().json()
        url = str(admin.base_url.join("/v1"))
        async with openai.AsyncOpenAI(base_url=url, api_key=started["api_key"], max_retries=0) as client:
            made: list[Response] = []
            while sum(len(each.output_text) for each in made) <= limit:
                made.append(await client.responses.create(**HELLO | {"input": f"Say {len(made)}."}))
            await client.responses.create(**HELLO | {"input": references(*made[:2])})
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(**HELLO | {"input": references(*made)})
            assert (refused.value.param, str(limit) in str(refused.value)) == ("input", True)


def test_a_conversation_goes_on_in_chat_and_back(session: AgentSession) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}
    with session.client() as client:
        chat: Any = {"messages": [system, user], "model": "m", "max_tokens": 300}
        [choice] = client.chat.completions.create(**chat).choices
        said = choice.message.to_dict()
        reasoning = said.get("reasoning_content")
        items: list[Any] = [{"role": "user", "content": "Hello?"}]
        if reasoning:
            content = [{"type": "reasoning_text", "text": reasoning}]
            items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": content})
        items += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "And now?"}]
        client.responses.create(model="m", instructions="Be brief.", input=items)
    assert parents(session) == [(None, None), (ids(session)[0], None)]


def test_prompts_are_the_same_to_the_token(proxy: ProxyProcess) -> None:
    by_chat, by_responses = proxy.start_session(), proxy.start_session()
    function: Any = {key: value for key, value in FIND.items() if key != "type"}
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    with by_chat.client() as client:
        client.chat.completions.create(model="m", messages=messages, tools=[{"type": "function", "function": function}])
    with by_responses.client() as client:
        client.responses.create(model="m", input=messages, tools=TOOLS[:1])
    assert by_chat.turns()[0]["prompt_tokens"] == by_responses.turns()[0]["prompt_tokens"]


def test_a_limit_is_an_upper_bound(session: AgentSession) -> None:
    with session.client() as client:
        response = client.responses.create(**HELLO | {"max_output_tokens": 2**31 - 1})
        cut = client.responses.create(**HELLO | {"max_output_tokens": 1})
    assert response.max_output_tokens == 2**31 - 1
    assert (cut.status, cut.usage and cut.usage.output_tokens) == ("incomplete", 1)
    assert cut.incomplete_details and cut.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_that_is_full_is_a_400_that_codex_reads(session: AgentSession, stream: bool) -> None:
    with session.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="m", input="word " * 300_000, stream=stream)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


def test_what_has_no_effect_is_named(session: AgentSession) -> None:
    with session.client() as client:
        raw = client.responses.with_raw_response.create(**HELLO, tools=TOOLS, truncation="auto")
    assert raw.headers["x-rolloutfleet-ignored"] == "truncation, tools.description, tools.web_search"


@pytest.fixture
async def admin(fleet: Fleet, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with proxy_in_process(fleet, tmp_path) as (_, client):
        yield client


@pytest.fixture
async def started(admin: httpx.AsyncClient) -> Json:
    return (await admin.post("/sessions", json={})).raise_for_status().json()


async def test_a_silent_stream_begins_and_is_kept_alive_by_events(
    fleet: Fleet, admin: httpx.AsyncClient, started: Json
) -> None:
    fleet.engine.fault("slow", seconds=5)
    headers = {"authorization": f"Bearer {started['api_key']}"}
    reply = await admin.post("/v1/responses", json={**HELLO, "stream": True}, headers=headers)
    kinds = [event["type"] for event in events(reply.content)]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.created") == 1


async def test_a_stream_that_ends_early_says_why_and_ends_no_item(
    fleet: Fleet, admin: httpx.AsyncClient, started: Json
) -> None:
    fleet.engine.fault("never", after_tokens=3)
    headers, data = {"authorization": f"Bearer {started['api_key']}"}, b""
    async with admin.stream("POST", "/v1/responses", json={**HELLO, "stream": True}, headers=headers) as reply:
        async for chunk in reply.aiter_bytes():
            if not data:
                await admin.delete(f"/sessions/{started['session_id']}")
            data += chunk
    stream = events(data)
    assert stream[-1]["type"] == "response.failed"
    assert stream[-1]["response"]["error"]["type"] == "session_deleted"
    assert not any(event["type"].endswith(".done") for event in stream)
    again = await admin.post("/v1/responses", json=HELLO, headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (400, "session_deleted")
