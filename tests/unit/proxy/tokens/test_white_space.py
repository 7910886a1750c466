"""White space around what a model says is told as it was sampled, but for what its format's template writes there."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from tests.unit.proxy.tokens.models.families import chat_format
from tests.unit.proxy.tokens.models.measuring import ASKED, TOOLS, _calls, _results, _thinking, _writes
from tests.unit.proxy.tokens.test_reading import NAMES, flat, flatten, joined, streamed

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.render import ChatFormat

CODE = "    x = 1\n    y = 2 \n  "
HEADS = {"gpt-oss": "<|end|><|start|>assistant<|channel|>final<|message|>", "inkling": "<|content_text|>"}
"""What stands before an answer, where that is no end of a thought."""
CALL = {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
SAYS: list[Message] = [
    {"content": content, **thought, **calls}
    for content, thought, calls in product(
        ("", CODE, f"\n\n\u2003{CODE}\n\n"),
        ({}, {"reasoning_content": "So."}, {"reasoning_content": "  So. \n  "}),
        ({}, {"tool_calls": [CALL]}),
    )
]


@pytest.mark.parametrize("name", NAMES)
def test_indented_code_is_told_as_it_was_sampled(models: Path, name: str) -> None:
    model = chat_format(name, models)
    prompt = model.prompt(ASKED, NO_ARGS, []).ids
    syntax = model.reader(prompt, NO_ARGS, seed=b"").syntax
    thinks = model._replies.thinking(prompt) == "open"
    head = HEADS.get(name) or (f"{(syntax.think or ('', ''))[1]}{syntax.gap}" if thinks else "")
    output = [*model.vocabulary.encode(f"{head}{CODE}{syntax.behind_content}"), model.stop_token_ids[0]]
    sent, message = streamed(model, prompt, [[token] for token in output], NO_ARGS)
    assert message["content"] == CODE
    assert joined(flatten(sent)) == flat(message)


@pytest.mark.parametrize("name", NAMES)
def test_text_that_a_format_writes_is_told_and_written_again(models: Path, name: str) -> None:
    model, compared = chat_format(name, models), 0
    _, args = _thinking(name, model, _calls(name))
    prompt = model.prompt(ASKED, args, []).ids
    for says in SAYS:
        if name in ("nemotron-3-ultra", "nemotron-3.5") and says["content"].startswith("\n"):
            continue  # A line break that stands before calls alone isn't told before content either.
        message = {"role": "assistant", **says}
        for following in written_behind(message):
            output = reply(model, prompt, message, following, args)
            if output is None:
                continue
            compared += 1
            text = model.vocabulary.decode(output)
            told = model.reader(prompt, args, seed=b"a").read(output).message
            for field in ("content", "reasoning_content"):
                value = says.get(field)
                assert not value or value not in text or (told.get(field) or "").strip("\n") == value.strip("\n"), text
            assert len(told.get("tool_calls", [])) == len(says.get("tool_calls", []))
            told |= {"content": told["content"] or "", "tool_calls": says.get("tool_calls")}
            again = reply(model, prompt, told, following, args)
            assert again == output, (text, told)
    # Their prompts end in other tokens than a message begins with.
    assert compared or name in ("deepseek-r1", "gpt-oss")


def written_behind(message: Message) -> Iterator[list[Message]]:
    if "tool_calls" in message:
        yield _results([("find", {})])
    yield from ([], [{"role": "user", "content": "More?"}])


def reply(
    model: ChatFormat, prompt: array[int], message: Message, following: list[Message], args: TemplateArgs
) -> array[int] | None:
    """What the format writes of a message behind the prompt that asks for it, up to its end."""
    whole = _writes(model, [*ASKED, message, *following], args)
    if whole is None or whole[: len(prompt)] != prompt:
        return None
    rest = whole[len(prompt) :]
    ends = [place for place, token in enumerate(rest) if token in model.stop_token_ids]
    return rest[: ends[0] + 1] if ends else None


def test_white_space_alone_beside_calls_is_not_told(models: Path) -> None:
    """Frameworks take it for an answer."""
    model = chat_format("kimi-k2", models)
    args = TemplateArgs(TOOLS)
    prompt = model.prompt(ASKED, args, []).ids
    call = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )
    for text, content in ((f"\n\n{call}\n", None), (f" Look.\n{call}\n", " Look.\n"), (f"{call}\n  So.\n", "\n  So.")):
        output = model.vocabulary.encode(text, add_special_tokens=False)
        sent, message = streamed(model, prompt, [[token] for token in output], args)
        assert (message["content"], len(message["tool_calls"])) == (content, 1)
        assert joined(flatten(sent)) == flat(message)
