"""Tokens in, tokens out: what the store has is what the engine made, for the real SDK and through the real gateway."""

from typing import Any

import pytest
from tests.fleets import Fleet, ProxyProcess
from tests.integration.proxy.rebuilding import rebuilt
from tests.waiting import until

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a city up",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def engine_made(fleet: Fleet, turn: dict[str, Any]) -> dict[str, Any]:
    """The engine's own note of a turn's generation."""
    notes: list[dict[str, Any]] = [note for note in fleet.engine.log() if note["rid"].startswith(turn["turn_id"])]
    assert len(notes) == 1
    return notes[0]


def assert_exact(fleet: Fleet, turns: list[dict[str, Any]]) -> None:
    """Every turn's ids, log-probabilities and versions are the engine's own, and children extend their parents."""
    prompts = {}
    for turn in turns:
        made = engine_made(fleet, turn)
        assert turn["output_ids"] == made["output_ids"]
        assert turn["logprobs"] == made["output_logprobs"]
        assert turn["versions"] == [
            int(version) for version, start, end in made["weight_versions"] for _ in range(start, end)
        ]
        assert turn["prompt_tokens"] == len(made["input_ids"])
        prompts[turn["turn_id"]] = made["input_ids"] + made["output_ids"]
        if turn["parent_id"] is not None:
            parent = prompts[turn["parent_id"]]
            assert made["input_ids"][: len(parent)] == parent


def talk(session: Any, *, turns: int, stream: bool, tools: bool = True) -> list[dict[str, Any]]:
    """An append-only agent: runs the tools it is told to, and asks on."""
    client = session.client()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful assistant."},
        {"role": "user", "content": "What is the weather in Paris?"},
    ]
    for number in range(turns):
        options: dict[str, Any] = {"tools": TOOLS} if tools else {}
        message = _ask(client, messages, stream=stream, **options)
        messages.append(message)
        calls = message.get("tool_calls") or []
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"Sunny, {number} degrees."})
        if not calls:
            messages.append({"role": "user", "content": f"And question {number}?"})
    return messages


def _ask(client: Any, messages: list[dict[str, Any]], *, stream: bool, **options: Any) -> dict[str, Any]:
    if not stream:
        reply = client.chat.completions.create(model="simulated", messages=messages, max_tokens=200, **options)
        message: dict[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
        return message
    joined: dict[str, Any] = {"role": "assistant", "content": ""}
    with client.chat.completions.create(
        model="simulated", messages=messages, max_tokens=200, stream=True, **options
    ) as events:
        for event in events:
            delta = event.choices[0].delta
            joined["content"] += delta.content or ""
            reasoning = getattr(delta, "reasoning_content", None)
            if reasoning:
                joined["reasoning_content"] = joined.get("reasoning_content", "") + reasoning
            for call in delta.tool_calls or []:
                calls = joined.setdefault("tool_calls", [])
                if call.index == len(calls):
                    calls.append(
                        {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}}
                    )
                calls[call.index]["function"]["arguments"] += call.function.arguments or ""
    return joined


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
def test_an_append_only_agent_extends_its_parent_at_every_turn(
    fleet: Fleet, proxy: ProxyProcess, stream: bool, tools: bool
) -> None:
    session = proxy.start_session()
    talk(session, turns=6, stream=stream, tools=tools)
    turns = session.turns()
    assert len(turns) == 6
    assert [turn["parent_id"] for turn in turns] == [None, *(turn["turn_id"] for turn in turns[:-1])]
    assert_exact(fleet, turns)
    assert proxy.audit()["balanced"]


def test_a_framework_that_rebuilds_every_message_extends_its_parent_at_every_turn(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session = proxy.start_session()
    said: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    for _ in range(8):
        said.append(_ask(session.client(), rebuilt(said), stream=False, tools=TOOLS))
        calls = said[-1].get("tool_calls") or []
        said += [{"role": "tool", "tool_call_id": call["id"], "content": "Sunny."} for call in calls]
        said += [] if calls else [{"role": "user", "content": "And now?"}]
    turns = session.turns()
    assert any(message.get("tool_calls") for message in said)
    assert [turn["parent_id"] for turn in turns] == [None, *(turn["turn_id"] for turn in turns[:-1])]
    assert_exact(fleet, turns)


def test_a_branch_says_why_wherever_it_is_told_of(fleet: Fleet, proxy: ProxyProcess) -> None:
    def counted() -> dict[str, int]:
        with proxy.admin() as admin:
            stats = admin.get("/stats").raise_for_status().json()
            for line in admin.get("/metrics").raise_for_status().text.splitlines():
                if line.startswith("rolloutfleet_branches_total"):
                    reason = line.split('"')[1]
                    assert float(line.split()[-1]) == stats["forks"][reason]
        return {**stats["forks"], **{f"follow-ups {kind}": count for kind, count in stats["follow_ups"].items()}}

    session = proxy.start_session()
    before = counted()
    said = talk(session, turns=3, stream=False, tools=False)
    answer = said[4]
    assert answer["role"] == "assistant"
    changed: dict[str, list[dict[str, Any]]] = {
        "content": [*said[:4], {**answer, "content": "I never said that."}, *said[5:]],
        "role": [*said[:4], {**answer, "role": "user"}, *said[5:]],
        "shorter": [*said[:2], *said[4:]],
    }
    for messages in changed.values():
        _ask(session.client(), messages, stream=False)
    _ask(session.client(), said, stream=False, tools=TOOLS)
    reasons = [turn["branch_reason"] for turn in session.turns()[3:]]
    expected = [(4, "content"), (4, "role"), (2, "content"), (None, "tools")]
    assert reasons == [{"message": message, "field": field} for message, field in expected]
    now = counted()
    more = {name: now[name] - before.get(name, 0) for name in now}
    expected_more = {"content": 2, "role": 1, "tools": 1, "follow-ups extending": 2, "follow-ups branch": 4}
    assert {name: count for name, count in more.items() if count} == expected_more

    def told() -> list[str]:
        log = proxy.log.read_text().splitlines()
        return [line for line in log if f"session_id={session.session_id}" in line and " turn_branched " in line]

    # A line is written by a thread of its own, which may be after the answer.
    until(lambda: len(told()) >= 4)
    lines = told()
    assert ["message=4" in lines[0], "field=content" in lines[0]] == [True, True]
    assert ["message=-1" in lines[3], "field=tools" in lines[3]] == [True, True]
    assert len(lines) == 4
    session.post("close")
    with proxy.admin() as admin:
        asked = {"session_ids": [session.session_id], "lease_seconds": 60}
        exported = admin.post("/export", json=asked, headers={"accept": "application/json"}).raise_for_status().json()
        assert proxy.stats()["leases"] >= 1, "this one, and those of other tests"
        admin.post(f"/leases/{exported['lease_id']}/release", json={}).raise_for_status()
    (trajectory,) = exported["trajectories"]
    assert [turn["branch_reason"] for turn in trajectory["turns"]][3:] == reasons


def test_the_first_turns_of_sub_agents_and_of_new_conversations_are_no_forks(proxy: ProxyProcess) -> None:
    def counted() -> dict[str, int]:
        stats = proxy.stats()
        return {**stats["forks"], **{f"follow-ups {kind}": count for kind, count in stats["follow_ups"].items()}}

    session = proxy.start_session()
    before = counted()
    said = talk(session, turns=2, stream=False, tools=False)
    client = session.client()
    one, other = (client.with_options(default_headers={"x-claude-code-agent-id": name}) for name in ("one", "other"))
    forked = [said[0], {**said[1], "content": "As it was told."}, *said[2:]]
    asked = [{"role": "user", "content": "Sum it up."}]
    for agent, messages in ((one, asked), (other, forked), (client, [{"role": "user", "content": "A summary."}])):
        _ask(agent, messages, stream=False)
    lately = session.turns()[2:]
    assert [turn["branch_reason"] for turn in lately] == [None] * 3
    more = {name: count - before.get(name, 0) for name, count in counted().items()}
    assert {name: count for name, count in more.items() if count} == {"follow-ups extending": 1}


def test_the_engine_writes_splits_that_no_tokenizer_would_choose_and_they_come_back_as_they_were(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    from tokenizers import Tokenizer

    from rolloutfleet_engine.model import model_path

    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    session = proxy.start_session()
    talk(session, turns=4, stream=False)
    turns = session.turns()
    retokenised = [
        tokenizer.encode(tokenizer.decode(turn["output_ids"], skip_special_tokens=False), add_special_tokens=False).ids
        for turn in turns
    ]
    assert any(ids != turn["output_ids"] for ids, turn in zip(retokenised, turns, strict=True))
    assert_exact(fleet, turns)


def test_logprobs_in_the_openai_form_are_the_engines(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    reply = session.client().chat.completions.create(
        model="simulated",
        messages=[{"role": "user", "content": "Say something"}],
        logprobs=True,
        top_logprobs=3,
        max_tokens=50,
    )
    (turn,) = session.turns()
    content = reply.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    assert [entry.logprob for entry in content] == turn["logprobs"]
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert reply.usage is not None and reply.usage.completion_tokens == len(turn["output_ids"])
    assert reply.usage.prompt_tokens == turn["prompt_tokens"]


def test_history_that_was_changed_starts_a_branch_and_history_that_was_cut_rejoins_its_turn(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session = proxy.start_session()
    messages = talk(session, turns=3, stream=False, tools=False)
    client = session.client()
    changed = [*messages[:-1], {"role": "user", "content": "Something else"}]
    _ask(client, changed, stream=False)
    other = [{**messages[0], "content": "You are careless."}, *messages[1:]]
    _ask(client, other, stream=False)
    first, second, third, sibling, branch = session.turns()
    assert third["parent_id"] == second["turn_id"] and sibling["parent_id"] == third["turn_id"]
    assert branch["parent_id"] is None
    assert [turn["branch_reason"] for turn in (first, second, third, sibling)] == [None] * 4
    assert branch["branch_reason"] == {"message": 0, "field": "content"}
    assert_exact(fleet, [first, second, third, sibling, branch])


def test_reasoning_that_the_agent_leaves_out_still_matches_and_reasoning_that_it_changes_does_not(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session = proxy.start_session()
    client = session.client()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Think about it"}]
    for _ in range(20):
        answer = _ask(client, messages, stream=False)
        if answer.get("reasoning_content"):
            break
        messages += [answer, {"role": "user", "content": "Think harder"}]
    assert answer.get("reasoning_content"), "the simulated engine reasons now and then"
    parent = session.turns()[-1]
    more = {"role": "user", "content": "Go on"}
    without = {name: value for name, value in answer.items() if name != "reasoning_content"}
    _ask(client, [*messages, without, more], stream=False)
    _ask(client, [*messages, {**answer, "reasoning_content": "another thought"}, more], stream=False)
    left_out, changed = session.turns()[-2:]
    assert left_out["parent_id"] == parent["turn_id"]
    assert changed["parent_id"] != parent["turn_id"]
    assert left_out["branch_reason"] is None
    assert changed["branch_reason"] == {"message": len(messages), "field": "reasoning"}
    assert_exact(fleet, session.turns())


def test_a_truncated_turn_is_closed_by_tokens_and_extended(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    client = session.client()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a long story"}]
    reply = client.chat.completions.create(model="simulated", messages=messages, max_tokens=5)  # type: ignore[arg-type]
    assert reply.choices[0].finish_reason == "length"
    messages += [reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Go on"}]
    _ask(client, messages, stream=False)
    first, second = session.turns()
    assert second["parent_id"] == first["turn_id"]
    assert_exact(fleet, [first, second])


def test_stop_strings_end_the_text_and_their_tokens_stay_in_the_turn(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    whole = _ask(session.client(), [{"role": "user", "content": "Say a lot"}], stream=False)
    text = whole["content"] or whole.get("reasoning_content")
    assert text and len(text) > 8
    word = next(word for word in text.split()[1:] if len(word) > 3)
    stopped = proxy.start_session()
    reply = stopped.client().chat.completions.create(
        model="simulated", messages=[{"role": "user", "content": "Say a lot"}], max_tokens=200, stop=[word]
    )
    said = reply.choices[0].message
    assert word not in (said.content or "") + str(getattr(said, "reasoning_content", ""))
    assert_exact(fleet, stopped.turns())


def test_keys_open_their_own_session_alone(proxy: ProxyProcess) -> None:
    mine, other = proxy.start_session(), proxy.start_session()
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert mine.raw_chat(body).status_code == 200
    assert mine.raw_chat(body, authorization=f"Bearer {other.api_key}").status_code == 403
    assert mine.raw_chat(body, authorization="Bearer nonsense").status_code == 401
    by_header = mine.raw_chat(body, authorization="", x_api_key=mine.api_key)
    assert by_header.status_code == 200
    assert len(mine.turns()) == 2 and other.turns() == []


def test_limits_answer_400_and_record_nothing(proxy: ProxyProcess) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 30}
    few = proxy.start_session(limits={"turns": 2})
    assert [few.raw_chat(body).status_code for _ in range(3)] == [200, 200, 400]
    short = proxy.start_session(limits={"tokens": 10})
    assert [short.raw_chat(body).status_code for _ in range(2)] == [200, 400]
    assert short.raw_chat(body).json()["error"]["code"] == "token_limit"
    assert len(few.turns()) == 2 and len(short.turns()) == 1


def test_a_prompt_beyond_the_context_is_refused_before_anything_is_sent(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    before = fleet.engine.counters()["received"]
    reply = session.raw_chat({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10_000_000})
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"
    assert fleet.engine.counters()["received"] == before and session.turns() == []


@pytest.mark.parametrize("kind", ["wrong_length", "nan", "infinity", "sentinel", "missing_logprobs", "bad_id", "bool"])
def test_a_reply_that_is_no_evidence_is_a_502_and_leaves_nothing(fleet: Fleet, proxy: ProxyProcess, kind: str) -> None:
    session = proxy.start_session()
    body = {"messages": [{"role": "user", "content": f"fault {kind}"}], "max_tokens": 30}
    fleet.engine.fault(kind)
    refused = session.raw_chat(body)
    assert refused.status_code == 502, refused.text
    assert refused.json()["error"]["code"] == "evidence_refused"
    fleet.engine.fault(kind)
    streamed = session.raw_chat({**body, "stream": True})
    assert streamed.status_code == 502 or '"evidence_refused"' in streamed.text
    assert 'finish_reason":"' not in streamed.text
    assert session.turns() == []
    assert session.raw_chat(body).status_code == 200


def test_a_stream_that_an_engine_breaks_off_goes_on_behind_what_came(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    fleet.engine.fault("cut_stream", after_tokens=25)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "ignore_eos": True}
    reply = session.raw_chat({**body, "stream": True})
    assert reply.status_code == 200 and reply.text.endswith("data: [DONE]\n\n")
    (turn,) = session.turns()
    first, second = fleet.engine.log()[-2:]
    part = len(second["input_ids"]) - len(first["input_ids"])
    assert turn["output_ids"] == first["output_ids"][:part] + second["output_ids"] and len(turn["output_ids"]) == 100
