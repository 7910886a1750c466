"""What agent frameworks make of a conversation before they send it again."""

from typing import Any

Json = Any


def rebuilt(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """The same conversation as a framework with a message class of its own sends it: other tool call ids, fields of its
    own on what the model said, white space where there was no content, and a line break between reasoning and content,
    as Inspect sends it."""
    names: dict[str, str] = {}
    return [_rebuilt(message, names) for message in messages]


def _rebuilt(message: dict[str, Json], names: dict[str, str]) -> dict[str, Json]:
    if message["role"] == "tool":
        return {**message, "tool_call_id": names[message["tool_call_id"]]}
    if message["role"] != "assistant":
        return message
    calls = [
        {
            "index": index,
            "id": names.setdefault(call["id"], f"chosen-by-the-agent-{len(names)}"),
            "type": "function",
            "function": call["function"],
            "provider_specific_fields": None,
        }
        for index, call in enumerate(message.get("tool_calls") or ())
    ]
    reasoning = message.get("reasoning_content")
    content = message.get("content")
    return {
        "role": "assistant",
        "content": f"\n{content}" if content and reasoning else content or ("\n" if calls else ""),
        "name": "solver",
        "tool_calls": calls or None,
        "reasoning_content": f"\n{reasoning}\n" if reasoning else None,
        "refusal": "none",
        "annotations": [{"type": "note"}],
        "provider_specific_fields": {"reasoning_content": reasoning, "refusal": None},
        "reasoning_details": [{"type": "reasoning.text", "text": reasoning or "kept apart"}],
        "extra": {"cost": 0.25},
    }
