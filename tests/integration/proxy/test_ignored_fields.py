"""What changes nothing that is promised is taken, and said: agents come as they are."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.calls import named
from tests.integration.proxy.metrics import samples
from tests.waiting import PATIENCE

from rolloutfleet.errors import INVALID_REQUEST
from rolloutfleet_proxy.telemetry.ignored_fields import LABELS, MOST_NAMES, OTHER

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
OF_FRAMEWORKS: dict[str, Any] = {
    "reasoning_effort": "low",
    "verbosity": "low",
    "seed": -1,
    "usage": {"include": True},
    "provider": {"order": ["a"]},
    "transforms": [],
    "thinking": {"type": "enabled"},
    "rid": "mine",
    "skip_special_tokens": True,
    "guided_json": {"type": "object"},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("pair"), beside=shared, proxies=2) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[ProxyProcess]:
    settings = {"compatibility": {"requests": "strict"}}
    with running_fleet(tmp_path_factory.mktemp("strict"), beside=shared, settings=settings) as fleet:
        yield fleet.proxy


def test_fields_without_effect_are_taken_and_named_in_the_answer(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    assert named(session.raw_chat(CHAT)) == []
    before = len(fleet.engine.log())
    assert sorted(named(session.raw_chat(CHAT | OF_FRAMEWORKS))) == sorted(OF_FRAMEWORKS)
    assert all("mine" not in entry["rid"] for entry in fleet.engine.log()[before:])


def test_streams_carry_the_header_too(proxy: ProxyProcess) -> None:
    reply = proxy.start_session().raw_chat({**CHAT, "stream": True, "verbosity": "low"})
    assert named(reply) == ["verbosity"] and reply.text.endswith("data: [DONE]\n\n")


def test_an_answer_given_again_carries_it(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    for stream in (False, True):
        body = {**CHAT, "stream": stream, "verbosity": "low"}
        replies = [session.raw_chat(body, idempotency_key=f"again-{stream}") for _ in range(2)]
        assert [named(reply) for reply in replies] == [["verbosity"]] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_passed_on_to_the_owner_keeps_it(pair: Fleet, stream: bool) -> None:
    session = pair.proxies[0].start_session()
    other = next(proxy for proxy in pair.proxies if not session.base_url.startswith(proxy.url))
    reply = httpx.post(
        f"{other.url}/v1/chat/completions",
        json={**CHAT, "stream": stream, "verbosity": "low"},
        headers={"authorization": f"Bearer {session.api_key}"},
        timeout=PATIENCE,
    )
    assert named(reply) == ["verbosity"]


def test_nested_fields_are_named_by_their_path_without_places(proxy: ProxyProcess) -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text, "annotations": []} for text in ("Hel", "lo")]
    session = proxy.start_session()
    plain = session.raw_chat(CHAT).json()["usage"]["prompt_tokens"]
    reply = session.raw_chat({**CHAT, "messages": [{"role": "user", "content": parts}]})
    assert named(reply) == ["messages.content.annotations"]
    assert reply.json()["usage"]["prompt_tokens"] == plain
    reply = session.raw_chat({**CHAT, "stream": True, "stream_options": {"more": 1}})
    assert named(reply) == ["stream_options.more"]


def test_header_holds_plain_names_and_the_metric_none_that_callers_made_up(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    odd = {"": 1, "a b": 1, "x\r\ny: 1": 1, "\u00e9": 1, "x" * 65: 1, 'q"': 1}
    assert named(session.raw_chat(CHAT | odd)) == [OTHER]
    many = {f"field_{number}": 1 for number in range(MOST_NAMES + 10)}
    assert named(session.raw_chat(CHAT | many)) == [*list(many)[:MOST_NAMES], OTHER]
    assert named(session.raw_chat(CHAT | {"one_more": 1, "verbosity": "low"})) == ["one_more", "verbosity"]
    counted = {labels[0] for (name, labels) in samples(proxy) if name == "rolloutfleet_fields_ignored_total"}
    assert {OTHER, "verbosity"} <= counted <= LABELS | {OTHER}


def test_strictly_read_exactly_what_would_be_named_is_refused(proxy: ProxyProcess, strict: ProxyProcess) -> None:
    lenient, refusing = proxy.start_session(), strict.start_session()
    fields: list[dict[str, Any]] = [{name: value} for name, value in OF_FRAMEWORKS.items()]
    fields += [{"user": "ann"}, {"n": 1}, {"seed": 3}, {"metadata": {"a": "b"}}, {"unheard_of": None}]
    for field in fields:
        taken, strictly = lenient.raw_chat(CHAT | field), refusing.raw_chat(CHAT | field)
        if named(taken):
            error = strictly.json()["error"]
            assert (strictly.status_code, error["code"], error["param"]) == (400, INVALID_REQUEST, *field)
        else:
            assert strictly.status_code == 200
    parts = [{"type": "text", "text": "a", "annotations": [1]}]
    reply = refusing.raw_chat({**CHAT, "messages": [{"role": "user", "content": parts}]})
    assert reply.json()["error"]["param"] == "messages[0].content[0].annotations"


def test_half_a_character_is_mended_alike_in_each_request_and_named(proxy: ProxyProcess, strict: ProxyProcess) -> None:
    session = proxy.start_session()
    cut: dict[str, Any] = {"messages": [{"role": "user", "content": "a\ud83d"}], "max_tokens": 5}
    first, again = session.raw_chat(cut), session.raw_chat(cut, **{"x-stainless-retry-count": "1"})
    assert named(first) == named(again) == ["messages.content"]
    assert first.json() == again.json()
    said = [*cut["messages"], first.json()["choices"][0]["message"], {"role": "user", "content": "and?"}]
    assert named(session.raw_chat({**cut, "messages": said})) == ["messages.content"]
    one, two = session.turns()
    assert two["parent_id"] == one["turn_id"]
    assert ("rolloutfleet_fields_ignored_total", ("messages.content",)) in samples(proxy)
    error = strict.start_session().raw_chat(cut).json()["error"]
    assert (error["code"], error["param"]) == (INVALID_REQUEST, "messages[0].content")


def test_byte_order_mark_before_a_body_is_passed_over(proxy: ProxyProcess) -> None:
    mark, session = b"\xef\xbb\xbf", proxy.start_session()
    assert session.raw_chat(mark + json.dumps(CHAT).encode()).status_code == 200
    with proxy.admin() as admin:
        assert admin.post("/sessions", content=mark + b'{"task_id": "a"}').status_code == 201
        path = f"/sessions/{session.session_id}/reward"
        assert admin.post(path, content=mark + b'{"reward": 1.0}').status_code == 200


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"n": 2}, "n"),
        ({"audio": {"voice": "a"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"temperature": "1"}, "temperature"),
        ({"seed": -2}, "seed"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ],
)
def test_what_cannot_be_meant_stays_refused_beside_fields_without_effect(
    proxy: ProxyProcess, field: dict[str, Any], param: str
) -> None:
    reply = proxy.start_session().raw_chat({**CHAT, "unheard_of": 1} | field)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].split("[")[0] == param


def test_an_engines_own_grammars_arrive_behind_the_gateway(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    for grammar in ({"regex": "[ab]{6}"}, {"ebnf": "root ::= [ab] [ab] [ab]"}):
        reply = session.raw_chat({**CHAT, "max_tokens": 50, **grammar})
        assert named(reply) == [] and set(reply.json()["choices"][0]["message"]["content"]) <= {"a", "b"}
