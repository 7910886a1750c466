"""What later system messages say reaches the prompt in its own place, whatever the chat format, rendered or bridged."""

from pathlib import Path
from typing import Any

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS, chat_format, write_model
from tests.unit.proxy.tokens.models.measuring import TOOLS

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.history import Support, adapted
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat

ALL = [*FAMILIES, *VARIANTS]
AT_THE_FRONT_ALONE = {
    *("qwen3.5", "qwen3.6", "qwen3.8", "qwen3-vl", "minimax-m2", "hy3"),
    *("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"),
}
ONE_AT_THE_FRONT = AT_THE_FRONT_ALONE - {"hy3"}
CALL = {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}


def said(*said: tuple[str, str]) -> list[Message]:
    return [{"role": role, "content": text} for role, text in said]


def written(model: ChatFormat, messages: list[Message], args: TemplateArgs = NO_ARGS) -> str:
    return model.vocabulary.decode(model.prompt(messages, args, []).ids)


def in_order(text: str, messages: list[Message]) -> None:
    places = [text.find(message["content"]) for message in messages if message["content"]]
    assert -1 not in places and places == sorted(places), text


CLAUDE_CODE = said(("system", "You are alpha."), ("user", "Say bravo."), ("system", "Know charlie."))
CODEX = said(("developer", "Be alpha."), ("developer", "Be bravo."), ("user", "Say charlie."), ("user", "And delta."))
USER_FIRST = said(("user", "Say alpha."), ("system", "Know bravo."))
LATER: list[Message] = [
    *CLAUDE_CODE,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "functions.find:0", "content": "found echo"},
    *said(("developer", "Mind foxtrot."), ("user", "Now golf.")),
]


@pytest.mark.parametrize("args", [NO_ARGS, TemplateArgs(TOOLS)], ids=["plain", "with tools"])
@pytest.mark.parametrize(
    "messages", [CLAUDE_CODE, CODEX, USER_FIRST, LATER], ids=["claude code", "codex", "user first", "later"]
)
@pytest.mark.parametrize("name", ALL)
def test_every_message_reaches_the_prompt_in_its_own_place(
    models: Path, name: str, messages: list[Message], args: TemplateArgs
) -> None:
    in_order(written(chat_format(name, models), messages, args), messages)


@pytest.mark.parametrize("name", ALL)
def test_a_bridge_writes_later_ones_as_a_full_render_does(models: Path, name: str) -> None:
    model = chat_format(name, models)
    for news in (
        said(("system", "Know bravo."), ("user", "Say charlie.")),
        said(("user", "Say bravo."), ("developer", "Know charlie."), ("system", "And delta.")),
    ):
        first = said(("system", "You are alpha."), ("user", "Hello?"))
        prompt = model.prompt(first, NO_ARGS, []).ids.tolist()
        end = [model.stop_token_ids[0]]
        output = model.vocabulary.encode("Fine.", add_special_tokens=False) + end
        messages = [*first, {"role": "assistant", "content": "Fine."}, *news]
        child = model.prompt(messages, NO_ARGS, [Candidate(3, lambda prompt=prompt, output=output: (prompt, output))])  # type: ignore[misc]
        is_child = child.parent == 0
        in_order(model.vocabulary.decode(child.ids[len(prompt) :] if is_child else child.ids), news)
        whole = written(model, messages)
        if is_child:
            tail = model.vocabulary.decode(child.ids[len(prompt) + len(output) :])
            assert whole.endswith(tail.lstrip("\n")), (whole, tail)


@pytest.mark.parametrize("name", sorted({*ALL} - AT_THE_FRONT_ALONE - {"gpt-oss"}))
def test_a_format_that_can_hold_them_is_given_them_as_they_are(models: Path, name: str) -> None:
    model = chat_format(name, models)
    for messages in (CLAUDE_CODE, LATER):
        as_system = [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]
        assert model.prompt(messages, NO_ARGS, []).ids == model.full(as_system, NO_ARGS)


@pytest.mark.parametrize("name", sorted(AT_THE_FRONT_ALONE))
def test_where_it_cant_a_later_one_is_a_users_message_and_leading_ones_are_one(models: Path, name: str) -> None:
    model = chat_format(name, models)
    reminder = said(("user", "<system-reminder>\nKnow charlie.\n</system-reminder>"))
    assert model.prompt(CLAUDE_CODE, NO_ARGS, []).ids == model.full([*CLAUDE_CODE[:2], *reminder], NO_ARGS)
    leading = said(("system", "Be alpha."), ("system", "Be bravo."))
    if name in ONE_AT_THE_FRONT:
        leading = said(("system", "Be alpha.\n\nBe bravo."))
    assert model.prompt(CODEX, NO_ARGS, []).ids == model.full([*leading, *CODEX[2:]], NO_ARGS)


def of_its_own(folder: Path, template: str) -> ChatFormat:
    directory = write_model(folder, FAMILIES["qwen3"], config={"model_type": "of its own"})
    (directory / "chat_template.jinja").write_text(template)
    return load(directory)


LOOP = "{%% for m in messages %%}%s<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{%% endfor %%}<|im_start|>"
TEMPLATES = {
    "writes all": LOOP % "",
    "refuses later ones": LOOP % "{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}",
    "drops later ones": LOOP % "{% if m.role != 'system' or loop.first %}" + "",
    "knows no system": LOOP % "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}",
}
TEMPLATES["drops later ones"] = TEMPLATES["drops later ones"].replace("{% endfor %}", "{% endif %}{% endfor %}")


@pytest.mark.parametrize("messages", [CLAUDE_CODE, CODEX], ids=["claude code", "codex"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_models_own_template_is_asked_what_it_can_hold(tmp_path: Path, name: str, messages: list[Message]) -> None:
    in_order(written(of_its_own(tmp_path, TEMPLATES[name]), messages), messages)


def test_a_message_that_a_template_drops_all_the_same_is_refused(tmp_path: Path) -> None:
    model = of_its_own(tmp_path, LOOP.replace("{{ m.content }}", "{{ m.content | replace('charlie', '') }}") % "")
    with pytest.raises(Unrenderable, match=r"drops what messages\[2\] says"):
        written(model, CLAUDE_CODE)
    assert "You are alpha." in written(model, CLAUDE_CODE[:2])


def test_places() -> None:
    messages: list[dict[str, Any]] = said(("system", "a"), ("developer", "b"), ("user", "c"), ("system", "d"))
    reminded = {"role": "user", "content": "<system-reminder>\nd\n</system-reminder>"}
    assert adapted(messages, Support(), start=0) == messages
    assert adapted(messages, Support(later=False), start=0) == [*messages[:3], reminded]
    joined = {"role": "system", "content": "a\n\nb"}
    assert adapted(messages, Support(leading=False, later=False), start=0) == [
        joined,
        messages[2],
        reminded,
    ]
    assert adapted(messages[3:], Support(leading=False, later=False), start=3) == [reminded]
