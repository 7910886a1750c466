"""What an assistant says beside its tool calls reaches the prompt, whatever the chat format, rendered or extended."""

from pathlib import Path

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS, chat_format, write_model

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat

CALL = {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
ASKED: Message = {"role": "user", "content": "Find alpha."}
BOTH: Message = {"role": "assistant", "content": "I look for bravo.", "tool_calls": [CALL]}
FOUND: Message = {"role": "tool", "tool_call_id": "functions.find:0", "content": "found charlie"}
ANSWERED: Message = {"role": "assistant", "content": "It is delta."}
MORE: Message = {"role": "user", "content": "And echo?"}
NEVER_BOTH = {"llama-3"}
"""A reply of these is a call, or it is text."""


def written(model: ChatFormat, messages: list[Message]) -> str:
    return model.vocabulary.decode(model.prompt(messages, NO_ARGS, []).ids)


@pytest.mark.parametrize("messages", [[ASKED, BOTH, FOUND], [ASKED, BOTH, FOUND, ANSWERED, MORE]], ids=["last", "old"])
@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_what_is_said_beside_calls_is_never_dropped(models: Path, name: str, messages: list[Message]) -> None:
    text = written(chat_format(name, models), messages)
    places = [text.find(word) for word in ("alpha", "bravo", *(("delta",) if ANSWERED in messages else ()))]
    assert -1 not in places and places == sorted(places), text


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.reply and name not in NEVER_BOTH])
def test_a_turn_that_said_something_beside_its_calls_keeps_its_tokens(models: Path, name: str) -> None:
    model, reply = chat_format(name, models), FAMILIES[name].reply
    assert reply is not None
    args = TemplateArgs([{"type": "function", "function": {"name": "find"}}])
    prompt = model.prompt([ASKED], args, []).ids.tolist()
    output = model.vocabulary.encode(reply("hm", "I look for bravo.", [("find", {"q": "x"})]), add_special_tokens=False)
    answer = model.reader(prompt, args, seed=b"0").read(output).message
    assert "bravo" in answer["content"] and len(answer["tool_calls"]) == 1
    found = {**FOUND, "tool_call_id": answer["tool_calls"][0]["id"]}
    extended = model.prompt([ASKED, answer, found], args, [Candidate(2, lambda: (prompt, output))])
    assert (extended.parent, extended.ids[: len(prompt) + len(output)].tolist()) == (0, prompt + output)


def test_where_one_message_cant_hold_both_the_text_is_a_message_of_its_own(models: Path) -> None:
    model = chat_format("llama-3", models)
    said, called = {"role": "assistant", "content": BOTH["content"]}, {**BOTH, "content": ""}
    assert model.prompt([ASKED, BOTH, FOUND], NO_ARGS, []).ids == model.full([ASKED, said, called, FOUND], NO_ARGS)
    assert model.prompt([ASKED, called, FOUND], NO_ARGS, []).ids == model.full([ASKED, called, FOUND], NO_ARGS)


LOOP = "{%% for m in messages %%}<|im_start|>{{ m.role }}: %s<|im_end|>{%% endfor %%}<|im_start|>"
NAMED = "m.tool_calls[0].function.name ~ m.tool_calls[0].function.arguments"
CALLS_ALONE = LOOP % f"{{{{ {NAMED} if m.tool_calls else m.content }}}}"
LOSING = LOOP % f"{{{{ {NAMED} if m.tool_calls else m.content if loop.length != 6 else 'no' }}}}"


def of_its_own(folder: Path, template: str) -> ChatFormat:
    directory = write_model(folder, FAMILIES["qwen3"], config={"model_type": "of its own"})
    (directory / "chat_template.jinja").write_text(template)
    return load(directory)


def test_a_models_own_template_is_asked_what_it_can_hold(tmp_path: Path) -> None:
    text = written(of_its_own(tmp_path, CALLS_ALONE), [ASKED, BOTH, FOUND])
    assert text.index("assistant: I look for bravo.") < text.index("assistant: find") < text.index("found charlie")


def test_what_a_template_drops_either_way_is_refused(tmp_path: Path) -> None:
    model = of_its_own(tmp_path, LOSING)
    with pytest.raises(Unrenderable, match=r"drops what messages\[1\] says") as caught:
        written(model, [ASKED, BOTH, FOUND, ANSWERED, MORE])
    assert caught.value.param == "messages[1].content"
    assert "find" in written(model, [ASKED, {**BOTH, "content": " "}, FOUND, ANSWERED, MORE])
