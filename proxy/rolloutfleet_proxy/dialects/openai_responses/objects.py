"""A turn as the Responses API shows it: items, usage, the response itself. Pure.

All of it follows from the turn and its request, so a response given again is the same to the byte. Its output has the
turn's reasoning and text in the order in which they came, as items of reasoning and messages (mostly one of each), and
then one item a call. A message that says nothing is there where nothing else is, so that whoever sends the output back
sends the turn. The items' ids say which turn they are of (`item_ids`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from rolloutfleet_proxy.dialects.openai_responses import item_ids
from rolloutfleet_proxy.dialects.openai_responses.item_ids import numbered_id, text_id, texts_of
from rolloutfleet_proxy.dialects.openai_responses.request import PREFIX, Echo
from rolloutfleet_proxy.dialects.openai_responses.tools import RAW, Declared, custom_input
from rolloutfleet_proxy.domain.turn import CONTENT, REASONING, Turn
from rolloutfleet_proxy.engine.request import ids_json

Item = dict[str, Any]

IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"
FAILED: Final = "failed"


def response_id(turn: str) -> str:
    return f"{PREFIX}{turn}"


def reasoning_item(turn: str, index: int, text: str | None, status: str) -> Item:
    """The turn's reasoning number `index`; without text, the item as it begins."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {
        "id": text_id(item_ids.REASONING, turn, index),
        "type": "reasoning",
        "summary": [],
        "content": content,
        "encrypted_content": None,
        "status": status,
    }


def message_item(turn: str, index: int, part: Mapping[str, Any] | None, status: str) -> Item:
    return {
        "id": text_id(item_ids.MESSAGE, turn, index),
        "type": "message",
        "role": "assistant",
        "content": [] if part is None else [part],
        "status": status,
    }


def text_part(text: str, logprobs: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(turn: str, index: int, call: Mapping[str, Any], declared: Mapping[str, Declared], status: str) -> Item:
    """A call as its tool was declared; `call` is as canonical messages have it. Custom calls have no status."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    tool = declared.get(name) or Declared(name=name)
    namespace = {} if tool.namespace is None else {"namespace": tool.namespace}
    if not tool.custom:
        said = {"call_id": call["id"], "name": tool.name, **namespace, "arguments": arguments}
        return {"id": numbered_id(item_ids.CALL, turn, index), "type": "function_call", **said, "status": status}
    text = custom_input(arguments)
    call_id, text = (call["id"], text) if text is not None else (call["id"] + RAW, arguments)
    said = {"call_id": call_id, "name": tool.name, **namespace, "input": text}
    return {"id": numbered_id(item_ids.CUSTOM_CALL, turn, index), "type": "custom_tool_call", **said}


def output_items(turn: Turn, declared: Mapping[str, Declared], logprobs: Any) -> Iterator[Item]:
    """All of a turn's. What the token limit cut off is the last text of it: a call is whole, or it is none. The last
    message has the log-probabilities of all tokens."""
    calls = turn.output.get("tool_calls") or ()
    end = INCOMPLETE if turn.finish_reason == "length" else COMPLETED
    said = texts_of(turn)
    messages = sum(field == CONTENT for field, *_ in said)
    for place, (field, index, text) in enumerate(said, 1):
        last = place == len(said)
        if field == REASONING:
            yield reasoning_item(turn.name, index, text, end if last and not calls else COMPLETED)
        else:
            of_last = logprobs if index == messages - 1 else []
            yield message_item(turn.name, index, text_part(text, of_last), end if last else COMPLETED)
    for index, call in enumerate(calls):
        yield call_item(turn.name, index, call, declared, COMPLETED)


def with_token_ids(items: list[Item], turn: Turn, prompt_ids: array[int]) -> list[Item]:
    """The last item brings the stored ids of prompt and output, and the log-probabilities, under NeMo's names: there
    its trainers read them, once a turn."""
    *others, last = items
    ids = {
        "prompt_token_ids": msgspec.Raw(ids_json(prompt_ids)),
        "generation_token_ids": msgspec.Raw(ids_json(turn.output_ids)),
        "generation_log_probs": turn.logprobs.tolist(),
    }
    return [*others, {**last, **ids}]


def response_object(
    turn: str,
    created_at: float,
    model: str,
    *,
    echo: Echo | None = None,
    tools: Any = (),
    status: str = IN_PROGRESS,
    output: Any = (),
    error: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A response; without `echo` one that repeats nothing of its request. `tools` are the request's."""
    cut = {"reason": "max_output_tokens"} if status == INCOMPLETE else None
    said: dict[str, Any] = {
        "id": response_id(turn),
        "object": "response",
        "created_at": int(created_at),
        "status": status,
        "error": error,
        "incomplete_details": cut,
        "model": model,
        "output": output,
    }
    if echo is None:
        return {**said, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}
    whole = {**said, "background": False, **asdict(echo), "tools": tools, "truncation": "disabled", "usage": usage}
    whole["user"] = whole.pop("user")  # The last one, as the API has it.
    return whole


def usage_of(turn: Turn) -> dict[str, Any]:
    """Reasoning is not counted apart: what chat formats write around it belongs to neither side."""
    completion = len(turn.output_ids)
    return {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": turn.extras.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.prompt_tokens + completion,
    }


def status_of_turn(turn: Turn) -> str:
    return INCOMPLETE if turn.finish_reason == "length" else COMPLETED
