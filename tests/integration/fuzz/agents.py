"""The calls of agents: a turn by each API that they speak, and what else these have."""

from typing import Any

from tests.integration.fuzz.asking import Ask, Json, Lane, keyed, nothing, written
from tests.integration.fuzz.judging import events
from tests.integration.fuzz.model import Session, Untold
from tests.integration.fuzz.wire import Answer
from tests.unit.proxy.dialects.openai_chat.test_request import FIELDS

TURNS_A_SESSION = 6
TOOLS: Json = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a city up",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
WRONG_MESSAGES: dict[str, list[Any]] = {
    "max_tokens": [None, 0, -1, 1.5, True, "5", 2**31],
    "messages": [None, "hi", {}, [], [1], [{"role": "tool", "content": "a"}], [{"role": "user"}]],
    "system": [1, {}, [1], [{"type": "image"}]],
    "tools": ["x", {}, [1], [{"input_schema": {}}]],
    "tool_choice": ["auto", {"type": "some"}, {"type": "tool"}, 1],
    "stop_sequences": ["a", [""], [1]],
    "temperature": [-0.1, 101, True, "1", []],
    "top_p": [-0.1, 1.01, True, "1"],
    "top_k": [-2, 0, 1.5, True, "1"],
    "stream": ["true", 1, []],
    "model": [1, [], {}],
}
WRONG_RESPONSES: dict[str, list[Any]] = {
    "max_output_tokens": [0, -1, 1.5, True, "5", 2**31],
    "input": [None, 1, {}, [], [1], [{"type": "message"}], [{"type": "item_reference", "id": "a"}]],
    "instructions": [1, {}, [1]],
    "previous_response_id": [1, "", "resp_none", {}],
    "background": [True],
    "conversation": ["a"],
    "prompt": [{"id": "a"}],
    "tools": ["x", {}, [1], [{"type": "function"}]],
    "temperature": [-0.1, 101, True, "1", []],
    "top_p": [-0.1, 1.01, True, "1"],
    "stream": ["true", 1, []],
    "model": [1, [], {}],
}


def _session(lane: Lane) -> Session | None:
    there = [each for each in lane.sessions() if len(each.ids) < TURNS_A_SESSION and not each.odd]
    return lane.random.choice(there) if there else None


def chat(lane: Lane) -> Ask | None:
    random, session = lane.random, _session(lane)
    if session is None:
        return None
    messages = [*session.messages, {"role": "user", "content": f"What is {lane.fresh()}?"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": random.randint(1, 24)}
    for name, value, chance in (
        ("stream", True, 0.4),
        ("tools", TOOLS, 0.2),
        ("logprobs", True, 0.2),
        ("temperature", 0.7, 0.2),
        ("model", "simulated", 0.3),
        ("user", "somebody", 0.1),
    ):
        if random.random() < chance:
            body[name] = value

    def effect(answer: Answer, sent: Json) -> None:
        turn_id, message = _turn_of(answer)
        lane.model.answered(session, turn_id)
        if message is not None and sent == body:
            session.messages = [*messages, message, *_tool_results(message)]

    headers = keyed(lane)
    if random.random() < 0.1:
        headers["x-stainless-retry-count"] = "1"
    by_key = random.random() < 0.3
    return Ask(
        route="POST /v1/chat/completions" if by_key else "POST /sessions/{id}/v1/chat/completions",
        names=() if by_key else (session.name,),
        proxy=lane.any_proxy(),
        key=session.key,
        body=written(body),
        wrong=FIELDS,
        headers=headers,
        retried="Idempotency-Key" in headers,
        effect=effect,
    )


def _turn_of(answer: Answer) -> tuple[str, Json]:
    """(turn id, the message where it came whole). Raises Untold where a stream has no end."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return answer.json["id"], answer.json["choices"][0]["message"]
    told = events(answer)
    reasons = [choice["finish_reason"] for event in told if event for choice in event["choices"]]
    if told[-1] is not None or not any(reasons):
        raise Untold("a stream ended without its finish reason and [DONE]")
    return told[0]["id"], None


def _tool_results(message: Json) -> list[Json]:
    calls = message.get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": "Sunny."} for call in calls]


def messages(lane: Lane) -> Ask | None:
    """A turn by the Anthropic Messages API."""
    random, session = lane.random, _session(lane)
    if session is None:
        return None
    asked = {"role": "user", "content": [{"type": "text", "text": f"What is {lane.fresh()}?"}]}
    body: dict[str, Any] = {"model": "simulated", "messages": [asked], "max_tokens": random.randint(1, 24)}
    for name, value, chance in (
        ("stream", True, 0.4),
        ("system", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], 0.3),
        ("tools", [_anthropic(tool["function"]) for tool in TOOLS], 0.2),
        ("thinking", {"type": "adaptive", "display": "updates"}, 0.2),
        ("metadata", {"user_id": "somebody"}, 0.1),
    ):
        if random.random() < chance:
            body[name] = value

    def effect(answer: Answer, sent: Json) -> None:
        told = _streamed(answer, last={"message_stop"})
        lane.model.answered(session, (answer.json if told is None else told[0]["message"])["id"])

    return _turn(lane, session, "/v1/messages", body, WRONG_MESSAGES, effect, query={"beta": "true"})


def count(lane: Lane) -> Ask | None:
    """How long a prompt would be. One proxy builds four at once, and sends the next ones away."""
    session = _session(lane)
    if session is None:
        return None
    body: dict[str, Any] = {"model": "simulated", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 9}
    by_key = lane.random.random() < 0.3
    return Ask(
        **_where(lane, session, "POST", "/v1/messages/count_tokens", by_key=by_key),
        body=written(body),
        wrong={**WRONG_MESSAGES, "max_tokens": WRONG_MESSAGES["max_tokens"][1:]},
        sure=False,
    )


def _anthropic(function: Json) -> Json:
    return {"name": function["name"], "input_schema": function["parameters"]}


def responses(lane: Lane) -> Ask | None:
    """A turn by the OpenAI Responses API."""
    random, session = lane.random, _session(lane)
    if session is None:
        return None
    body: dict[str, Any] = {"input": f"What is {lane.fresh()}?", "max_output_tokens": random.randint(1, 24)}
    for name, value, chance in (
        ("stream", True, 0.4),
        ("instructions", "Be brief.", 0.3),
        ("tools", [{"type": "function", **tool["function"]} for tool in TOOLS], 0.2),
        ("store", False, 0.2),
    ):
        if random.random() < chance:
            body[name] = value
    if session.responses and random.random() < 0.5:
        body["previous_response_id"] = random.choice(session.responses)

    def effect(answer: Answer, sent: Json) -> None:
        told = _streamed(answer, last={"response.completed", "response.incomplete"})
        name = (answer.json if told is None else told[-1]["response"])["id"]
        lane.model.answered(session, name.removeprefix("resp_"))
        session.responses.append(name)

    return _turn(lane, session, "/v1/responses", body, WRONG_RESPONSES, effect)


def _turn(
    lane: Lane, session: Session, path: str, body: Json, wrong: dict[str, list[Any]], effect: Any, **options: Any
) -> Ask:
    headers = keyed(lane)
    return Ask(
        **_where(lane, session, "POST", path, by_key=lane.random.random() < 0.3),
        body=written(body),
        wrong=wrong,
        headers=headers,
        retried=bool(headers),
        effect=effect,
        **options,
    )


def _where(lane: Lane, session: Session, method: str, path: str, *names: str, by_key: bool) -> dict[str, Any]:
    """The route of a call of a session, by its key alone or by its path."""
    return {
        "route": f"{method} {path}" if by_key else f"{method} /sessions/{{id}}{path}",
        "names": names if by_key else (session.name, *names),
        "proxy": lane.any_proxy(),
        "key": session.key,
    }


def _streamed(answer: Answer, *, last: set[str]) -> list[Json] | None:
    """The events of a stream, None of a whole answer. Raises Untold where it has no end."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return None
    told = events(answer)
    if told[-1]["type"] not in last:
        raise Untold(f"a stream ended with {told[-1]['type']}")
    return told


def response(lane: Lane) -> Ask | None:
    """A response shown again, or hidden."""
    there = [each for each in lane.sessions() if each.responses and not each.odd]
    if not there:
        return None
    random, session = lane.random, lane.random.choice(there)
    name, method = random.choice(session.responses), "DELETE" if random.random() < 0.3 else "GET"

    def hide(answer: Answer, sent: Json) -> None:
        session.responses.remove(name)

    by_key = random.random() < 0.3
    effect = hide if method == "DELETE" else nothing
    return Ask(**_where(lane, session, method, "/v1/responses/{id}", name, by_key=by_key), effect=effect)
