"""What is left out where messages are compared is nothing that the chat format writes: a bridge would not see it."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.tokens.models.families import FAMILIES, chat_format

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, conversation
from rolloutfleet_proxy.tokens.quirks import Unrenderable

FIELDS: dict[str, Any] = {
    "name": "solver",
    "refusal": "I won't.",
    "annotations": [{"type": "url_citation", "url": "http://odd"}],
    "provider_specific_fields": {"odd": "odd"},
    "reasoning_details": [{"type": "reasoning.text", "text": "odd"}],
    "thinking": "odd",
    "thinking_blocks": [{"type": "thinking", "thinking": "odd"}],
    "thinking_signature": "odd",
    "extra": {"odd": "odd"},
    "id": "odd",
    "task": "odd",
    "wo_eos": True,
    "response_format": {"odd": "odd"},
    "tool_responses": [{"name": "odd", "response": {"odd": "odd"}}],
    "prefix": True,
    "partial": True,
    "tools": [{"name": "odd"}],
    "phase": "odd",
}
FUNCTION = {"name": "find", "arguments": '{"q": "x"}'}
CALL: dict[str, Any] = {"id": "functions.find:0", "type": "function", "function": FUNCTION}
SAID: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "So.", "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "functions.find:0", "content": "found"},
    {"role": "user", "content": "More?"},
]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_field_that_changes_what_is_written_counts(models: Path, name: str) -> None:
    model = chat_format(name, models)

    def of(messages: list[Message]) -> tuple[Any, Any]:
        chain = conversation(messages, NO_ARGS, model.rules).chains[-1]
        try:
            return model.prompt(messages, NO_ARGS, []).ids, chain
        except Unrenderable as refused:
            return str(refused), chain

    prompt, chain = of(SAID)
    for index, message in enumerate(SAID):
        for field, value in FIELDS.items():
            other_prompt, other_chain = of([*SAID[:index], {**message, field: value}, *SAID[index + 1 :]])
            assert other_prompt == prompt or other_chain != chain, (message["role"], field)
        for call in ({**CALL, "odd": "odd", "index": 3}, {**CALL, "function": {**FUNCTION, "odd": "odd"}}):
            if "tool_calls" in message:
                other_prompt, _ = of([*SAID[:index], {**message, "tool_calls": [call]}, *SAID[index + 1 :]])
                assert other_prompt == prompt
