"""A dialect that nobody speaks, made of one class and one line in the registry: everything else is common.

It differs from the OpenAI API in all that a dialect may differ in: paths, the header of its key, the system prompt,
blocks within messages, names of events, what keeps a stream alive, usage in the first event, and the form of errors.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import msgspec
import pytest
from tests.fleets import Fleet, running_fleet
from tests.integration.proxy.in_process import proxy_in_process
from tests.waiting import PATIENCE

from rolloutfleet_proxy.control.no_route import which_are_there
from rolloutfleet_proxy.dialects import registry
from rolloutfleet_proxy.dialects.base import Dialect, Encoder, HeaderMap, Reading, TokenBytes, TurnRequest
from rolloutfleet_proxy.dialects.openai_chat import OpenAIChat
from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter, UnreadableJson
from rolloutfleet_proxy.domain.events import Committed, Delta, Started, Text, ToolCall
from rolloutfleet_proxy.domain.messages import NO_ARGS
from rolloutfleet_proxy.http.errors import headers_of, status_of
from rolloutfleet_proxy.http.headers import Headers
from rolloutfleet_proxy.ids import SESSION, Owner

LIMIT = 100_000


class ToyRequest(TurnRequest, frozen=True, kw_only=True):
    names: ClassVar = {"messages": "said", "model": "who", "max_tokens": "most", "stops": "until"}

    shout: bool


class BoundedRequest(ToyRequest, frozen=True, kw_only=True):
    max_tokens_is_upper_bound: ClassVar = True


class Toy(Dialect[ToyRequest]):
    name = "toy"
    api = "the toy API"
    paths: ClassVar[tuple[str, ...]] = ("/toy/say", "/sessions/{session_id}/toy/say")
    count_paths: ClassVar[tuple[str, ...]] = ("/sessions/{session_id}/toy/weigh",)
    greeting_paths: ClassVar[tuple[str, ...]] = ("/sessions/{session_id}/toy",)
    silence_after = 0.2
    key_forms = "`x-toy-key: KEY`"

    def key(self, headers: HeaderMap) -> str | None:
        return headers.get("x-toy-key")

    def is_retry(self, headers: HeaderMap) -> bool:
        return "x-toy-again" in headers

    def read(self, body: bytes, reading: Reading) -> ToyRequest:
        try:
            asked = msgspec.json.decode(body, type=dict[str, Any])
        except ValueError as error:
            raise UnreadableJson(error) from None
        if "said" not in asked:
            raise InvalidParameter("said", "Say something.")
        messages = [{"role": "system", "content": asked["manner"]}] if "manner" in asked else []
        for each in asked["said"]:
            words = "".join(block["words"] for block in each["blocks"])
            messages.append({"role": "user" if each["by"] == "them" else "assistant", "content": words})
        kind, most = (BoundedRequest, asked["up_to"]) if "up_to" in asked else (ToyRequest, asked.get("most", 60))
        return kind(
            messages=messages,
            model=asked.get("who"),
            template=NO_ARGS,
            calls=None,
            max_tokens=most,
            sampling={},
            stops=tuple(asked.get("until", ())),
            stream=asked.get("live", False),
            logprobs=False,
            top_logprobs=0,
            stripped=("noise",) if "noise" in asked else (),
            shout=asked.get("shout", False),
        )

    def counted(self, tokens: int) -> bytes:
        return msgspec.json.encode({"weight": tokens})

    def encoder(self, request: ToyRequest, *, model: str, token_bytes: TokenBytes) -> Encoder:
        return ToyEncoder(request, model)

    def answer_to(self, error: DomainError) -> tuple[int, Headers, bytes]:
        body = msgspec.json.encode(wrong(error))
        return status_of(error), [(b"content-type", b"application/toy"), *headers_of(error)], body

    def error_event(self, error: DomainError) -> bytes:
        return event("sorry", wrong(error))


class Keyed(Toy):
    """The same below a path that can name no session: its key alone does. Its streams begin as soon as they can."""

    name = "keyed"
    paths = ("/keyed/say",)
    count_paths = greeting_paths = ()

    def encoder(self, request: ToyRequest, *, model: str, token_bytes: TokenBytes) -> Encoder:
        return EagerEncoder(request, model)


class ToyEncoder(Encoder):
    def __init__(self, request: ToyRequest, model: str) -> None:
        self._loud = request.shout
        self._model = model
        self._hello = b""

    def started(self, event_: Started) -> bytes:
        usage = {"read": event_.prompt_tokens}
        self._hello = event("hello", {"turn": event_.turn_id, "model": self._model, "usage": usage})
        return b""

    def delta(self, event_: Delta) -> bytes:
        assert not isinstance(event_, ToolCall)
        kind = "words" if isinstance(event_, Text) else "thoughts"
        return self._opened() + event(kind, {kind: self._said(event_.text)})

    def committed(self, event_: Committed) -> bytes:
        return self._opened() + event("bye", {"why": event_.turn.finish_reason})

    def failed(self, error: DomainError) -> bytes:
        return event("sorry", wrong(error))

    def silence(self) -> bytes:
        return self._opened() + event("thinking", {})

    def whole(self, event_: Committed) -> bytes:
        turn = event_.turn
        return msgspec.json.encode({"turn": turn.name, "blocks": [{"words": self._said(turn.output["content"])}]})

    def _opened(self) -> bytes:
        hello, self._hello = self._hello, b""
        return hello

    def _said(self, words: str) -> str:
        return words.upper() if self._loud else words


class EagerEncoder(ToyEncoder):
    def started(self, event_: Started) -> bytes:
        return super().started(event_) + self._opened()


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def wrong(error: DomainError) -> dict[str, Any]:
    return {"wrong": error.code, "because": error.message, "where": error.param}


def said(*words: str, **more: Any) -> dict[str, Any]:
    """A conversation whose speakers take turns."""
    spoken = [{"by": ("them", "us")[place % 2], "blocks": [{"words": each}]} for place, each in enumerate(words)]
    return {"manner": "Be brief.", "said": spoken, **more}


def events_in(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    lines = [block.split("\n") for block in stream.decode().split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "DIALECTS", (OpenAIChat(), Toy(), Keyed()))
    yield


@pytest.fixture
async def admin(toy: None, fleet: Fleet, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    elsewhere = {
        "replicas": 2,
        "lost_proxies": [1],
        "peers": {"ports": [9, 9]},
        "body_limit": LIMIT,
        "models": {"names": ["toy"]},
    }
    async with proxy_in_process(fleet, tmp_path, **elsewhere) as (_, client):
        yield client


@pytest.fixture
async def agent(admin: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a session's key, where the toy has it."""
    started = (await admin.post("/sessions", json={})).raise_for_status().json()
    headers = {"x-toy-key": started["api_key"], "x-session": started["session_id"]}
    async with httpx.AsyncClient(base_url=admin.base_url, headers=headers, timeout=PATIENCE) as client:
        yield client


async def turns_of(admin: httpx.AsyncClient, agent: httpx.AsyncClient) -> list[dict[str, Any]]:
    reply = await admin.get(f"/sessions/{agent.headers['x-session']}/turns")
    turns: list[dict[str, Any]] = reply.raise_for_status().json()["turns"]
    return turns


async def test_a_toy_conversation_is_captured_whole_streamed_and_again(
    admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    first = (await agent.post("/toy/say", json=said("Hello?"))).raise_for_status().json()
    [words] = first["blocks"]
    asked = said("Hello?", words["words"], "And now?", live=True)
    path = f"/sessions/{agent.headers['x-session']}/toy/say"
    stream = events_in((await agent.post(path, json=asked)).raise_for_status().content)

    parent, child = await turns_of(admin, agent)
    assert (parent["turn_id"], child["parent_id"]) == (first["turn"], first["turn"])
    names = [name for name, _ in stream]
    assert (names[0], names[-1]) == ("hello", "bye") and set(names[1:-1]) <= {"thinking", "thoughts", "words"}
    assert stream[0][1]["turn"] == child["turn_id"]
    assert stream[0][1]["usage"] == {"read": child["prompt_tokens"]}
    assert stream[-1][1] == {"why": child["finish_reason"]}

    again = events_in((await agent.post(path, json=asked, headers={"x-toy-again": "1"})).content)
    live = "".join(data["words"] for name, data in stream if name == "words")
    assert "".join(data["words"] for name, data in again if name == "words") == live
    assert again[0] == stream[0] and again[-1] == stream[-1]
    assert len(await turns_of(admin, agent)) == 2


async def test_the_same_conversation_goes_on_in_another_dialect(
    admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    first = (await agent.post("/toy/say", json=said("Hello?"))).raise_for_status().json()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": first["blocks"][0]["words"]},
        {"role": "user", "content": "And now?"},
    ]
    bearer = {"authorization": f"Bearer {agent.headers['x-toy-key']}"}
    await agent.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 20}, headers=bearer)
    _, child = await turns_of(admin, agent)
    assert (child["parent_id"], child["branch_reason"]) == (first["turn"], None)


async def test_what_was_stripped_is_named_on_the_turn_and_in_exports(
    admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    await agent.post("/toy/say", json=said("Hello?"))
    await agent.post("/toy/say", json=said("Hello?", noise="c3f1"))
    expected = [None, ["noise"]]
    assert [turn["stripped"] for turn in await turns_of(admin, agent)] == expected
    (await admin.post(f"/sessions/{agent.headers['x-session']}/close")).raise_for_status()
    export = (await admin.post("/export", json={"session_ids": [agent.headers["x-session"]]})).raise_for_status().json()
    assert [turn["stripped"] for turn in export["trajectories"][0]["turns"]] == expected


async def test_a_dialect_counts_and_greets_at_paths_of_its_own(
    admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    below = f"/sessions/{agent.headers['x-session']}/toy"
    weighed = (await agent.post(f"{below}/weigh", json=said("Hello?"))).raise_for_status().json()
    await agent.post("/toy/say", json=said("Hello?"))
    [turn] = await turns_of(admin, agent)
    assert weighed == {"weight": turn["prompt_tokens"]}

    nobody = await admin.post(f"{below}/weigh", json=said("Hello?"))
    assert (nobody.status_code, nobody.json()["wrong"]) == (401, "invalid_key")
    assert nobody.headers["content-type"] == "application/toy"
    elsewhere = f"/sessions/{Owner(1, '0123456789ab').name(SESSION)}/toy"
    refused = await agent.post(f"{elsewhere}/weigh", json=said("Hello?"))
    assert (refused.status_code, refused.json()["wrong"]) == (503, "owner_unreachable")
    assert (await admin.get(elsewhere, headers={"authorization": ""})).status_code == 200


async def test_a_path_that_names_no_session_leaves_it_to_the_key(
    admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    first = (await agent.post("/keyed/say", json=said("Hello?"))).raise_for_status().json()
    [turn] = await turns_of(admin, agent)
    assert turn["turn_id"] == first["turn"]

    elsewhere = {"x-toy-key": Owner(1, "0123456789ab").key()}
    refused = await agent.post("/keyed/say", json=said("Hello?"), headers=elsewhere)
    assert (refused.status_code, refused.json()["wrong"]) == (503, "owner_unreachable")


async def test_a_stream_that_begins_early_fails_with_its_own_status_until_it_has_begun(
    fleet: Fleet, admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    refused = await agent.post("/keyed/say", json=said("Hello?", live=True, most=2**31 - 1))
    assert (refused.status_code, refused.json()["wrong"]) == (400, "context_length_exceeded")

    fleet.engine.fault("never", after_tokens=0)
    data = b""
    async with agent.stream("POST", "/keyed/say", json=said("Hello?", live=True)) as reply:
        assert reply.status_code == 200
        async for chunk in reply.aiter_bytes():
            if not data:
                await admin.delete(f"/sessions/{agent.headers['x-session']}")
            data += chunk
    stream = [(name, data_.get("wrong")) for name, data_ in events_in(data) if name != "thinking"]
    assert stream == [("hello", None), ("sorry", "session_deleted")]


async def test_whoever_misses_the_way_is_told_of_every_dialects_paths(admin: httpx.AsyncClient) -> None:
    there = (
        "Agents call POST /v1/chat/completions, POST /toy/say, GET /v1/models, GET /v1/models/{model}, each also below "
        "/sessions/{session_id}; POST /keyed/say; POST /sessions/{session_id}/toy/weigh."
    )
    for path in ("/v1/embeddings", "/sessions/s/toy/hear"):
        reply = await admin.get(path)
        assert (reply.status_code, reply.json()["error"]["message"]) == (404, f"GET {path}: Not Found. {there}")
    reply = await admin.get("/toy/say/more")
    assert (reply.status_code, reply.json()) == (
        404,
        {"wrong": "not_found", "because": f"GET /toy/say/more: Not Found. {there}", "where": None},
    )
    for path in ("/toy/say", "/keyed/say", "/sessions/s/toy/say", "/sessions/s/toy/weigh"):
        reply = await admin.get(path)
        assert (reply.status_code, reply.headers["allow"], reply.json()) == (
            *(405, "POST"),
            {"wrong": "method_not_allowed", "because": f"GET {path}: Method Not Allowed. {there}", "where": None},
        )
    reply = await admin.put("/sessions/s/v1/responses/resp_turn-1", json={})
    assert (reply.status_code, reply.headers["allow"]) == (405, "DELETE, GET")
    reply = await admin.delete("/v1/chat/completions")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["error"]["code"] == "method_not_allowed"
    for path in ("/nothing", "/sessions/s/nothing"):
        assert "Agents call" not in (await admin.get(path)).text


async def test_every_dialects_paths_are_in_the_schema(admin: httpx.AsyncClient) -> None:
    described = (await admin.get("/openapi.json")).raise_for_status().json()["paths"]
    calls = [path for _, path in (*registry.call_paths(), *registry.count_paths())]
    assert {path: described[path]["post"]["responses"]["200"]["description"] for path in calls} == {
        "/v1/chat/completions": "As the OpenAI API has it.",
        "/sessions/{session_id}/v1/chat/completions": "As the OpenAI API has it.",
        "/toy/say": "As the toy API has it.",
        "/sessions/{session_id}/toy/say": "As the toy API has it.",
        "/keyed/say": "As the toy API has it.",
        "/sessions/{session_id}/toy/weigh": "As the toy API has it.",
    }
    assert described["/sessions/{session_id}/toy"].keys() == {"head"}


def test_the_way_is_told_as_long_as_the_openai_api_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DIALECTS", (OpenAIChat(),))
    told = "POST /v1/chat/completions, GET /v1/models, GET /v1/models/{model}, each also below /sessions/{session_id}."
    assert which_are_there("/v1/chat/completions", []) == f"Agents call {told}"


async def test_a_silent_stream_is_kept_alive_in_its_own_way(fleet: Fleet, agent: httpx.AsyncClient) -> None:
    fleet.engine.fault("slow", seconds=5)
    stream = events_in((await agent.post("/toy/say", json=said("Hello?", live=True))).content)
    assert [name for name, _ in stream][:2] == ["hello", "thinking"]
    assert stream[-1][0] == "bye"


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"said": []}, "said"),
        ({"most": 0}, "most"),
        ({"most": -1}, "most"),
        ({"most": 2**31}, "most"),
        ({"until": ["end", ""]}, "until"),
    ],
)
async def test_what_no_turn_can_be_made_of_is_refused_in_the_dialects_words(
    agent: httpx.AsyncClient, live: bool, asked: dict[str, Any], field: str
) -> None:
    body = {"said": [{"by": "them", "blocks": [{"words": "Hello?"}]}], "live": live, **asked}
    reply = await agent.post("/toy/say", json=body)
    assert (reply.status_code, reply.json()["wrong"]) == (400, "invalid_request")
    assert reply.json()["where"] == field
    assert reply.json()["because"].startswith(f"{field}: ")


@pytest.mark.parametrize("live", [False, True])
async def test_errors_of_all_apis_name_the_dialects_own_fields(agent: httpx.AsyncClient, live: bool) -> None:
    async def at_fault(body: dict[str, Any]) -> tuple[str, str]:
        refusal = (await agent.post("/toy/say", json=body)).json()
        return refusal["wrong"], refusal["where"]

    assert await at_fault(said("Hello?", live=live, most=2**31 - 1)) == ("context_length_exceeded", "said")
    assert await at_fault(said("Hello?", live=live, who="other")) == ("model_not_found", "who")


async def test_a_limit_that_is_an_upper_bound_is_cut_to_what_the_context_leaves(
    fleet: Fleet, admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    key = {"x-api-key": agent.headers["x-toy-key"]}
    model = (await agent.get("/v1/models", headers=key)).json()["data"][0]
    for asked, room in ((2**31 - 1, None), (20, 20)):
        await agent.post("/toy/say", json=said("Hello?", up_to=asked))
        turn = (await turns_of(admin, agent))[-1]
        [entry] = [each for each in fleet.engine.log() if each["rid"].startswith(turn["turn_id"])]
        left = model["max_model_len"] - turn["prompt_tokens"]
        assert entry["sampling_params"]["max_new_tokens"] == (room or left)


async def test_an_upper_bound_is_cut_to_what_the_engines_have_where_that_is_less(toy: None, tmp_path: Path) -> None:
    small = running_fleet(tmp_path / "small", engine_options=("--max-context", "300"), start_proxies=False)
    with small as fleet:
        async with proxy_in_process(fleet, tmp_path / "proxy") as (_, admin):
            started = (await admin.post("/sessions", json={})).raise_for_status().json()
            key, path = {"x-toy-key": started["api_key"]}, f"/sessions/{started['session_id']}/toy/say"
            (await admin.post(path, json=said("Hello?", up_to=100_000), headers=key)).raise_for_status()
            [turn] = (await admin.get(f"/sessions/{started['session_id']}/turns")).json()["turns"]
            [entry] = [each for each in fleet.engine.log() if each["rid"].startswith(f"{turn['turn_id']}.cut.")]
            assert entry["sampling_params"]["max_new_tokens"] == 300 - turn["prompt_tokens"]
            for asked in (said("a " * 400, up_to=100_000), said("Hello?", most=100_000)):
                reply = await admin.post(path, json=asked, headers=key)
                assert (reply.status_code, reply.json()["wrong"]) == (400, "context_length_exceeded")


def test_a_path_within_a_field_of_another_name_is_named_by_the_field() -> None:
    paths = ("messages[2].content", "messages", "tools[0].function", "max_tokens")
    assert [ToyRequest.called(path) for path in paths] == ["said", "said", "tools[0].function", "most"]
    assert [TurnRequest.called(path) for path in paths] == list(paths)


async def test_a_call_without_a_key_hears_where_the_dialect_has_it(
    admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    elsewhere = f"/sessions/{Owner(9, '0123456789ab').name(SESSION)}/toy/say"
    async with httpx.AsyncClient(base_url=admin.base_url) as nobody:
        for path in ("/toy/say", f"/sessions/{agent.headers['x-session']}/toy/say", elsewhere):
            reply = await nobody.post(path, json=said("Hello?"))
            assert (reply.status_code, reply.json()["because"]) == (401, "A key is needed, as `x-toy-key: KEY`.")
        reply = await nobody.post("/v1/chat/completions", json={})
        needed = "A key is needed, as `Authorization: Bearer KEY` or `x-api-key: KEY`."
        assert (reply.status_code, reply.json()["error"]["message"]) == (401, needed)


@pytest.mark.parametrize("live", [False, True])
async def test_every_error_has_the_toys_form(admin: httpx.AsyncClient, agent: httpx.AsyncClient, live: bool) -> None:
    async def refused(path: str = "/toy/say", body: Any = None, **headers: str) -> tuple[int, str]:
        reply = await agent.post(path, json=said("Hello?", live=live) if body is None else body, headers=headers)
        assert reply.headers["content-type"] == "application/toy"
        assert set(reply.json()) == {"wrong", "because", "where"}
        return reply.status_code, reply.json()["wrong"]

    key, name = agent.headers["x-toy-key"], agent.headers["x-session"]
    elsewhere = Owner(1, "0123456789ab")
    assert await refused(**{"x-toy-key": "rf-none"}) == (401, "invalid_key")
    assert await refused(body={"live": live}) == (400, "invalid_request")
    assert await refused(body=["no object"]) == (400, "invalid_json")
    assert await refused(body=said("Hello?", live=live, who="other")) == (404, "model_not_found")
    assert await refused(body=said("a" * LIMIT, live=live)) == (413, "body_too_large")
    assert await refused(**{"x-toy-key": elsewhere.key()}) == (503, "owner_unreachable")
    assert await refused(f"/sessions/{elsewhere.name(SESSION)}/toy/say") == (503, "owner_unreachable")
    (await admin.delete(f"/sessions/{name}")).raise_for_status()
    assert await refused(**{"x-toy-key": key}) == (410, "session_deleted")
    with_no_key = await admin.post("/toy/say", json=said("Hello?", live=live))
    assert (with_no_key.status_code, with_no_key.json()["wrong"]) == (401, "invalid_key")


async def test_a_stream_that_ends_early_says_why_in_the_toys_form(
    fleet: Fleet, admin: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    fleet.engine.fault("never", after_tokens=3)
    data = b""
    async with agent.stream("POST", "/toy/say", json=said("Hello?", live=True)) as reply:
        async for chunk in reply.aiter_bytes():
            if not data:
                await admin.delete(f"/sessions/{agent.headers['x-session']}")
            data += chunk
    stream = events_in(data)
    assert (stream[0][0], stream[-1][0], stream[-1][1]["wrong"]) == ("hello", "sorry", "session_deleted")
    assert not any(name == "bye" for name, _ in stream)
