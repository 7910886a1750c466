"""Whatever name an agent calls the model by is taken and given back, unless the resource lists the names."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.metrics import samples

from rolloutfleet.errors import MODEL_NOT_FOUND, NOT_FOUND

ASKED: list[Any] = [{"role": "user", "content": "Hello"}]
NAMES = ("gpt-4o", "Qwen/Qwen3-8B", "/models/checkpoint-7", "a b:ü")


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    """A fleet of two proxies whose resource lists a name."""
    with running_fleet(
        tmp_path_factory.mktemp("listing"), beside=shared, proxies=2, settings={"models": {"names": ["judge"]}}
    ) as fleet:
        yield fleet


def get(session: AgentSession, path: str, proxy: ProxyProcess | None = None) -> httpx.Response:
    """By the session's key at any proxy, where one is given; else below its own address."""
    base = session.base_url if proxy is None else f"{proxy.url}/v1"
    return httpx.get(f"{base}{path}", headers={"authorization": f"Bearer {session.api_key}"})


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_taken_and_given_back_in_the_answer(proxy: ProxyProcess, name: str) -> None:
    session = proxy.start_session()
    client = session.client()
    assert client.chat.completions.create(model=name, messages=ASKED, max_tokens=5).model == name
    chunks = list(client.chat.completions.create(model=name, messages=ASKED, max_tokens=5, stream=True))
    assert {chunk.model for chunk in chunks} == {name}


def test_an_answer_given_again_has_the_name_that_was_asked_for(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    replies = [
        session.raw_chat({"messages": ASKED, "model": "judge", "max_tokens": 5}, idempotency_key="one")
        for _ in range(2)
    ]
    assert replies[0].content == replies[1].content and replies[0].json()["model"] == "judge"
    assert session.raw_chat({"messages": ASKED, "max_tokens": 5}).json()["model"] == "simulated"


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_found_by_any_name_with_slashes_escaped_or_not(proxy: ProxyProcess, name: str) -> None:
    session = proxy.start_session()
    assert session.client().models.retrieve(name).id == name
    for written in (quote(name), quote(name, safe="")):
        for asked in (get(session, f"/models/{written}"), get(session, f"/models/{written}", proxy)):
            assert (asked.status_code, asked.json()["id"]) == (200, name)
            assert asked.json().keys() == {"id", "object", "created", "owned_by", "max_model_len"}


def test_listed_names_and_the_fleets_own_are_the_only_ones(listing: Fleet) -> None:
    session = listing.proxies[0].start_session()
    client = session.client()
    for name in ("judge", "simulated"):
        assert client.chat.completions.create(model=name, messages=ASKED, max_tokens=5).model == name
        assert client.models.retrieve(name).id == name
    assert [model.id for model in client.models.list()] == ["simulated", "judge"]
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-4o", messages=ASKED)
    assert (refused.value.code, refused.value.param) == (MODEL_NOT_FOUND, "model")
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("gpt-4o")
    assert refused.value.code == MODEL_NOT_FOUND


def test_a_proxy_that_is_not_the_owner_has_a_prompt_counted_there(listing: Fleet) -> None:
    session = listing.proxies[0].start_session()
    other = next(proxy for proxy in listing.proxies if not session.base_url.startswith(proxy.url))
    for path in (f"/sessions/{session.session_id}/v1/messages/count_tokens", "/v1/messages/count_tokens"):
        for name, status in (("judge", 200), ("claude", 404)):
            body = {"model": name, "messages": ASKED}
            replies = [
                httpx.post(f"{proxy.url}{path}", json=body, headers={"x-api-key": session.api_key})
                for proxy in listing.proxies
            ]
            assert {reply.status_code for reply in replies} == {status}
            assert replies[0].content == replies[1].content
    assert samples(other).get(("rolloutfleet_requests_total", ("POST", "passed_on", "404"))) == 2
    assert session.turns() == []


def test_a_proxy_that_is_not_the_owner_passes_names_on_as_they_are_written(listing: Fleet) -> None:
    session = listing.proxies[0].start_session()
    other = next(proxy for proxy in listing.proxies if not session.base_url.startswith(proxy.url))
    for written, status in (("judge", 200), ("%2Fjudge", 404), ("/judge", 404), ("j%75dge", 200)):
        assert get(session, f"/models/{written}", other).status_code == status


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/embeddings",
        "/v1/v1/chat/completions",
        "/chat/completions",
        "/v1/models/",
    ],
)
def test_a_route_that_is_not_there_says_which_are(proxy: ProxyProcess, path: str) -> None:
    session = proxy.start_session()
    for prefix in ("", f"/sessions/{session.session_id}"):
        reply = httpx.get(f"{proxy.url}{prefix}{path}", headers={"authorization": f"Bearer {session.api_key}"})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (404, NOT_FOUND)
        for route in (
            "POST /v1/chat/completions",
            "GET /v1/models",
            "GET /v1/models/{model}",
            "/sessions/{session_id}",
        ):
            assert route in error["message"]


def test_a_native_route_that_is_not_there_says_which_are_near(proxy: ProxyProcess) -> None:
    with proxy.admin() as admin:
        assert "/leases/{lease_id}/ack" in admin.post("/leases/x/acknowledge", json={}).json()["error"]["message"]
        assert "/sessions" in admin.get("/nothing").json()["error"]["message"]
