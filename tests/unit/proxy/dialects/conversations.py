"""Conversations in the canonical form, and as a client of each dialect sends them."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from rolloutfleet_proxy.dialects.anthropic_messages import AnthropicMessages
from rolloutfleet_proxy.dialects.base import Dialect, Reading, TurnRequest
from rolloutfleet_proxy.dialects.openai_chat import OpenAIChat
from rolloutfleet_proxy.dialects.openai_responses import OpenAIResponses
from rolloutfleet_proxy.domain.events import Delta, Reasoning, ToolCall
from rolloutfleet_proxy.domain.messages import Message

Json = Any

FIND = {
    "name": "find",
    "description": "Finds.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}, "strict": True}
TOOLS = [FIND, LOOK]
USER = {"role": "user", "content": "a"}
CHAT, MESSAGES, RESPONSES = OpenAIChat(), AnthropicMessages(), OpenAIResponses()

texts = st.text(min_size=1, max_size=6)
objects = st.dictionaries(st.text(max_size=3), st.integers(-(2**53), 2**53) | st.text(max_size=3), max_size=2)
names = st.sampled_from(["find", "look"])


def call(name: str, arguments: str, call_id: str = "call_a") -> dict[str, Json]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@st.composite
def conversations(draw: st.DrawFn, named: st.SearchStrategy[str] = names, later: Sequence[str] = ()) -> list[Message]:
    """With everything that a message may have; `later` are the roles that others than users and tools may have."""
    messages: list[Message] = [{"role": "system", "content": draw(texts)}, {"role": "user", "content": draw(texts)}]
    for turn in range(draw(st.integers(0, 3))):
        answer: Message = {"role": "assistant", "content": draw(texts)}
        if draw(st.booleans()):
            answer["reasoning_content"] = draw(texts)
        count = draw(st.integers(0, 2))
        if count:
            answer["tool_calls"] = [
                call(draw(named), json.dumps(draw(objects)), f"call_{turn}_{index}") for index in range(count)
            ]
            answer["content"] = draw(st.none() | texts)
        messages.append(answer)
        for each in answer.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": draw(st.text(max_size=3))})
        # Two answers in a row may be one: something has to come between.
        roles = st.lists(st.sampled_from(["user", *later]), min_size=0 if count else 1, max_size=2)
        messages += [{"role": role, "content": draw(texts)} for role in draw(roles)]
    return messages


def by_chat(messages: list[Message], tools: Sequence[Json] = TOOLS) -> dict[str, Json]:
    return {"model": "m", "messages": messages, "tools": [{"type": "function", "function": tool} for tool in tools]}


def by_messages(messages: list[Message], tools: Sequence[Json] = TOOLS) -> dict[str, Json]:
    """All results of one answer's calls are in one message, as the API has it."""
    system, *others = messages
    said: list[Json] = []
    for message in others:
        if message["role"] != "tool":
            content = as_blocks(message) if message["role"] == "assistant" else message["content"]
            said.append({"role": message["role"], "content": content})
        elif said[-1]["role"] == "user" and type(said[-1]["content"]) is list:
            said[-1]["content"] += as_blocks(message)
        else:
            said.append({"role": "user", "content": as_blocks(message)})
    declared = [
        {"input_schema" if name == "parameters" else name: value for name, value in tool.items()} for tool in tools
    ]
    return {"model": "m", "max_tokens": 100, "system": system["content"], "messages": said, "tools": declared}


def by_responses(messages: list[Message], tools: Sequence[Json] = TOOLS) -> dict[str, Json]:
    system, *others = messages
    items = [item for message in others for item in as_items(message)]
    declared = [{"type": "function", **tool} for tool in tools]
    return {"model": "m", "instructions": system["content"], "input": items, "tools": declared}


WRITTEN: list[tuple[Dialect[Any], Any]] = [(CHAT, by_chat), (MESSAGES, by_messages), (RESPONSES, by_responses)]
"""Each dialect, and what writes a conversation in it."""


def parts_of(deltas: Sequence[Delta]) -> list[int] | None:
    """In which order reasoning and text came, as a turn keeps it (`Extras.parts`)."""
    lengths = [0]
    for delta in deltas:
        if not isinstance(delta, ToolCall) and delta.text:
            if isinstance(delta, Reasoning) == (len(lengths) % 2 == 0):
                lengths.append(0)
            lengths[-1] += len(delta.text)
    return lengths if len(lengths) > 2 else None


def read(dialect: Dialect[Any], body: Json) -> TurnRequest:
    request: TurnRequest = dialect.read(json.dumps(body).encode(), Reading())
    return request


def sent_back(dialect: Dialect[Any], answer: Json) -> Json:
    """A request whose conversation has this answer in its middle, as a client has got it."""
    if dialect is CHAT:
        return {"messages": [USER, answer["choices"][0]["message"], USER]}
    if dialect is MESSAGES:
        return {"max_tokens": 9, "messages": [USER, {"role": "assistant", "content": answer["content"]}, USER]}
    return {"input": [USER, *answer["output"], USER]}


def answered(dialect: Dialect[Any], answer: Json) -> Message:
    """What an answer says, in the canonical form."""
    return read(dialect, sent_back(dialect, answer)).messages[1]


def as_blocks(message: Message) -> list[dict[str, Json]]:
    """A message's content as a client of the Anthropic API sends it."""
    if message["role"] == "tool":
        content = message["content"]
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}]
    blocks: list[dict[str, Json]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for each in message.get("tool_calls", ()):
        function = each["function"]
        said = {"id": each["id"], "name": function["name"], "input": json.loads(function["arguments"])}
        blocks.append({"type": "tool_use", **said})
    return blocks


def as_items(message: Message) -> list[dict[str, Json]]:
    """A message as a client of the Responses API sends it."""
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": [{"type": "input_text", "text": message["content"]}]}]
    items: list[dict[str, Json]] = []
    if "reasoning_content" in message:
        content = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": content, "encrypted_content": None})
    if message["content"] is not None:
        content = [{"type": "output_text", "text": message["content"], "annotations": []}]
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "content": content, "status": "completed"})
    for each in message.get("tool_calls", ()):
        function = each["function"]
        space, _, name = function["name"].rpartition("__")
        namespace = {"namespace": space} if space else {}
        said = {"call_id": each["id"], "name": name, **namespace, "arguments": function["arguments"]}
        items.append({"type": "function_call", "id": "fc_1", **said})
    return items
