"""White space around an assistant's content counts where messages are compared, unless the chat format drops it."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS, chat_format

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, Outer, conversation
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.tokens.support import trimmed_whitespace

TEXT, THOUGHT = "So it is.", "for once"
FUNCTION = {"name": "find", "arguments": '{"q": "x"}'}
CALL: dict[str, Any] = {"id": "functions.find:0", "type": "function", "function": FUNCTION}
USER: Message = {"role": "user", "content": "Hello?"}
FOUND: Message = {"role": "tool", "tool_call_id": "functions.find:0", "content": "found"}
AROUND = [f"{start}{TEXT}{end}" for start in ("", "\n", " ", "\n\n\t", "\u2003") for end in ("", "\n", "  ", "\r\n")]
PLACES: list[tuple[Message, list[Message]]] = [
    ({}, [USER]),
    ({}, [USER, {"role": "assistant", "content": "Yes."}, USER]),
    ({"tool_calls": [CALL]}, [FOUND]),
    ({"tool_calls": [CALL]}, [FOUND, USER]),
    ({"tool_calls": [CALL]}, [FOUND, {"role": "assistant", "content": "Yes."}, USER]),
]


def written(model: ChatFormat, messages: list[Message]) -> str | None:
    try:
        return model.vocabulary.decode(model.full(messages, NO_ARGS))
    except Unrenderable:
        return None


@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": THOUGHT}], ids=["plain", "reasoned"])
@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_messages_that_are_alike_are_written_alike(models: Path, name: str, reasoning: Message) -> None:
    """Of a message with reasoning, where the format writes that; it takes it away from earlier turns."""
    model, compared = chat_format(name, models), 0
    for beside, following in PLACES:
        said = [
            [USER, {"role": "assistant", "content": content, **reasoning, **beside}, *following] for content in AROUND
        ]
        plain = written(model, said[0])
        if plain is None or (reasoning and THOUGHT not in plain):
            continue
        compared += 1
        chains = [conversation(messages, NO_ARGS, model.rules).chains[-1] for messages in said]
        for messages, chain in zip(said, chains, strict=True):
            assert chain != chains[0] or written(model, messages) == plain, messages
    assert compared or reasoning


def test_what_qwen3_drops_is_found_out(models: Path) -> None:
    rules = chat_format("qwen3", models).rules
    assert (rules.plain, rules.reasoned) == (Outer(), Outer(start="lines"))


def test_what_others_drop_is_found_out(models: Path) -> None:
    assert chat_format("qwen3.5", models).rules.plain == Outer("spaces", "spaces")
    assert chat_format("kimi-k2", models).rules.reasoned == Outer()


def test_a_format_that_writes_nothing_drops_nothing() -> None:
    assert (
        trimmed_whitespace(lambda messages: None, reasoned=False)
        == trimmed_whitespace(lambda messages: None, reasoned=True)
        == Outer()
    )
