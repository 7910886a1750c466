"""Turns are sampled as the trainer says, whatever the agent asks for, and say what they were sampled with."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.test_sampling_fields import CHAT, arrived
from tests.waiting import PATIENCE

Json = Any
HERS: Json = {
    "defaults": {"temperature": 0.5, "top_p": 0.25},
    "overrides": {"top_k": 7, "max_tokens": 9, "chat_template_kwargs": {"enable_thinking": False}},
}
EFFECTIVE: Json = {
    "temperature": 0.75,
    "top_p": 0.25,
    "top_k": 7,
    "max_tokens": 9,
    "chat_template_kwargs": {"enable_thinking": False},
}
ASKED: Json = {**CHAT, "temperature": 0.75, "top_k": 3, "chat_template_kwargs": {"enable_thinking": True}}
MESSAGES: Json = {"max_tokens": 12, "temperature": 0.75, "top_k": 3, "messages": CHAT["messages"]}
RESPONSES: Json = {
    "input": "Hello",
    "max_output_tokens": 12,
    "temperature": 0.75,
    "top_k": 3,
    "chat_template_kwargs": {"enable_thinking": True},
}


def exported_turns(proxy: ProxyProcess, session_id: str) -> list[Json]:
    with proxy.admin() as admin:
        export = admin.post("/export", json={"session_ids": [session_id]}).raise_for_status().json()
    turns: list[Json] = export["trajectories"][0]["turns"]
    return turns


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("chat/completions", ASKED), ("messages", MESSAGES), ("responses", RESPONSES)],
    ids=["chat", "messages", "responses"],
)
def test_the_engine_is_asked_for_what_the_trainer_says_and_the_turn_tells_it(
    fleet: Fleet, proxy: ProxyProcess, path: str, body: Json, stream: bool
) -> None:
    session = proxy.start_session(sampling=HERS)
    assert session.show()["sampling"] == HERS
    headers = {"authorization": f"Bearer {session.api_key}"}
    asking = {**body, "stream": stream}
    httpx.post(f"{session.base_url}/{path}", json=asking, headers=headers, timeout=PATIENCE).raise_for_status()
    asked = arrived(fleet, session)
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["max_new_tokens"]) == (0.75, 0.25, 7, 9)
    [turn] = session.turns()
    assert turn["sampling"] == EFFECTIVE
    session.post("close").raise_for_status()
    assert [turn["sampling"] for turn in exported_turns(proxy, session.session_id)] == [EFFECTIVE]


def test_a_limit_of_the_trainers_is_an_upper_bound(proxy: ProxyProcess) -> None:
    session = proxy.start_session(sampling={"overrides": {"max_tokens": 2**31 - 1}})
    session.raw_chat(CHAT).raise_for_status()
    assert session.turns()[0]["sampling"]["max_tokens"] < 2**31 - 1


def test_template_arguments_of_the_trainer_are_what_the_prompt_is_written_with(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    """And turns extend each other under them, whatever the agent says of these from call to call."""
    owned, free = proxy.start_session(sampling=HERS), proxy.start_session()
    messages = [{"role": "user", "content": "Hello"}]
    for thinking in (True, False, None):
        kwargs = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        reply = owned.raw_chat({"messages": messages, **kwargs}).raise_for_status().json()
        messages += [reply["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    turns = owned.turns()
    assert [turn["parent_id"] for turn in turns] == [None, turns[0]["turn_id"], turns[1]["turn_id"]]
    free.raw_chat({**CHAT, "chat_template_kwargs": {"enable_thinking": False}}).raise_for_status()
    prompts = [
        entry["input_ids"]
        for turn in (turns[0], free.turns()[0])
        for entry in fleet.engine.log()
        if entry["rid"].startswith(turn["turn_id"])
    ]
    assert prompts[0] == prompts[1]


def test_a_turn_of_which_nobody_says_anything_tells_what_the_engine_was_asked_for(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session = proxy.start_session()
    assert session.show()["sampling"] == {}
    session.raw_chat({"messages": CHAT["messages"]}).raise_for_status()
    assert session.turns()[0]["sampling"] == {"max_tokens": arrived(fleet, session)["max_new_tokens"]}


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"default": {}}, "sampling.default"),
        ({"defaults": {"top_k": 0}}, "sampling.defaults.top_k"),
        ({"defaults": {"temperature": -1}}, "sampling.defaults.temperature"),
        ({"overrides": {"max_tokens": 0}}, "sampling.overrides.max_tokens"),
        ({"overrides": {"top_p": 0}}, "sampling.overrides.top_p"),
        ({"overrides": {"min_p": 0.5}}, "sampling.overrides.min_p"),
        ({"defaults": {"chat_template_kwargs": {"a": "x" * 20_000}}}, "sampling.defaults.chat_template_kwargs"),
        ({"defaults": {"chat_template_kwargs": {"nope": 1}}}, "sampling.defaults.chat_template_kwargs.nope"),
        (
            {"overrides": {"chat_template_kwargs": {"enable_thinking": 3}}},
            "sampling.overrides.chat_template_kwargs.enable_thinking",
        ),
        (
            {"overrides": {"chat_template_kwargs": {"reasoning_effort": "low"}}},
            "sampling.overrides.chat_template_kwargs",
        ),
    ],
)
def test_what_can_not_be_is_said_when_the_session_is_started(proxy: ProxyProcess, sampling: Json, param: str) -> None:
    before = proxy.audit()["sessions"]
    with proxy.admin() as admin:
        reply = admin.post("/sessions", json={"sampling": sampling})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(param), reply.text
    assert proxy.audit()["sessions"] == before


@pytest.fixture(scope="module")
def owning(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    """A fleet whose resource says how its sessions are sampled."""
    settings = {"sessions": {"sampling": {"defaults": {"temperature": 0.25}, "overrides": {"max_tokens": 5}}}}
    with running_fleet(tmp_path_factory.mktemp("owning"), beside=shared, settings=settings) as fleet:
        yield fleet


def test_a_fleet_says_it_for_sessions_that_do_not_and_each_keeps_what_it_began_with(owning: Fleet) -> None:
    """Through a kill of the proxy, and a change of the settings."""
    proxy = owning.proxy
    plain = proxy.start_session()
    own = proxy.start_session(sampling={"defaults": {"max_tokens": 8}})
    proxy.kill()
    proxy.settings["sessions"] = {"sampling": {"overrides": {"temperature": 1.5}}}
    proxy.launch()
    proxy.wait_until_ready()
    later = proxy.start_session()
    expected = [(plain, 0.25, 5), (own, 0.25, 8), (later, 1.5, None)]
    for session, temperature, max_tokens in expected:
        session.raw_chat({"messages": CHAT["messages"]}).raise_for_status()
        sampling = session.turns()[0]["sampling"]
        assert sampling["temperature"] == temperature
        assert max_tokens is None or sampling["max_tokens"] == max_tokens
    own.raw_chat(CHAT).raise_for_status()
    assert own.turns()[1]["sampling"]["max_tokens"] == CHAT["max_tokens"]


def test_a_dumped_session_comes_back_with_it(owning: Fleet) -> None:
    proxy = owning.proxy
    session = proxy.start_session(sampling=HERS)
    counted = session.show()["sampling"]
    session.raw_chat(ASKED).raise_for_status()
    session.post("close").raise_for_status()
    with proxy.admin() as admin:
        proxy.drain("to dump", mode="cordon").raise_for_status()
        admin.post("/dumps").raise_for_status()
        admin.delete("/drain").raise_for_status()
        listed = admin.get("/dumps").raise_for_status().json()["dumps"]
        [name] = [each["name"] for each in listed if each["session_id"] == session.session_id]
        admin.post("/dumps/import", json={"names": [name]}).raise_for_status()
    assert session.show()["sampling"] == counted
    assert [turn["sampling"] for turn in session.turns()] == [EFFECTIVE]
