"""Tools, calls and results reach the prompt, or the request is refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS, chat_format, write_model

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.tokens.support import dropped, drops_some

USER: Message = {"role": "user", "content": "Use find."}
CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"q": "bravo"}'}}
CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
FOUND: Message = {"role": "tool", "tool_call_id": "c", "content": "charlie"}
PROPERTIES = {"alpha": {"type": "string", "description": "Delta."}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "find", "description": "Echo.", "parameters": {"type": "object", "properties": PROPERTIES}},
}
TOOLS = TemplateArgs([TOOL])

NAMES = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"


def of_its_own(folder: Path, head: str, inner: str) -> ChatFormat:
    directory = write_model(folder / "m", FAMILIES["qwen3"], config={"model_type": "of its own"})
    template = f"{head}{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}: {inner}<|im_end|>{{% endfor %}}"
    (directory / "chat_template.jinja").write_text(template)
    return load(directory)


def place(model: ChatFormat, messages: list[Message], args: TemplateArgs) -> str | None:
    """Of what is refused."""
    try:
        model.prompt(messages, args, [])
    except Unrenderable as error:
        assert f"drops {error.param}" in str(error)
        return error.param
    return None


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_every_format_writes_tools_and_calls_and_results(models: Path, name: str) -> None:
    model = chat_format(name, models)
    text = model.vocabulary.decode(model.prompt([USER], TOOLS, []).ids)
    assert all(text.count(word) >= count for word, count in (("find", 2), ("alpha", 1), ("Delta.", 1), ("Echo.", 1)))
    text = model.vocabulary.decode(model.prompt([USER, CALLING, FOUND], NO_ARGS, []).ids)
    assert text.index("Use find") < text.index("find", text.index("Use find") + 8)
    assert text.index("bravo") < text.index("charlie")


@pytest.mark.parametrize(
    ("head", "inner", "lost"),
    [
        ("", "{{ m.content }}", ["tools", "messages[1].tool_calls"]),
        (NAMES, "{{ m.content }}", [None, "messages[1].tool_calls"]),
        (NAMES, "{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}", [None, "messages[1].tool_calls"]),
        (NAMES, "{{ m.content if m.role != 'tool' }}" + CALLS, [None, "messages[2].content"]),
        ("", "{{ m.content }}" + CALLS, ["tools", None]),
        (NAMES, "{{ m.content }}" + CALLS, [None, None]),
    ],
)
def test_parts_that_a_models_own_template_drops_are_refused(
    tmp_path: Path, head: str, inner: str, lost: list[str | None]
) -> None:
    model = of_its_own(tmp_path, head, inner)
    assert [place(model, [USER], TOOLS), place(model, [USER, CALLING, FOUND], NO_ARGS)] == lost
    assert place(model, [USER], NO_ARGS) is None


def test_a_second_call_or_result_that_is_dropped_is_refused(tmp_path: Path) -> None:
    one = "{% for c in (m.tool_calls or [])[:1] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    model = of_its_own(tmp_path / "calls", NAMES, "{{ m.content }}" + one)
    both = [{**CALLING, "tool_calls": [CALL, {**CALL, "id": "d"}]}, FOUND, {**FOUND, "tool_call_id": "d"}]
    assert place(model, [USER, *both], NO_ARGS) == "messages[1].tool_calls"
    assert place(model, [USER, CALLING, FOUND], NO_ARGS) is None
    behind = "{{ m.content if m.role != 'tool' or messages[loop.index0 - 1].role != 'tool' }}"
    model = of_its_own(tmp_path / "results", NAMES, behind + CALLS)
    assert place(model, [USER, *both], NO_ARGS) == "messages[3].content"


def test_a_template_that_tells_of_tools_under_a_condition_is_refused_where_it_does_not(tmp_path: Path) -> None:
    head = f"{{% if messages[0].role == 'system' %}}{NAMES}{{% endif %}}"
    model = of_its_own(tmp_path, head, "{{ m.content }}" + CALLS)
    assert place(model, [USER], TOOLS) == "tools"
    assert place(model, [{"role": "system", "content": "Be brief."}, USER], TOOLS) is None


def test_tools_that_a_template_with_a_date_drops_are_refused(tmp_path: Path) -> None:
    model = of_its_own(tmp_path, "{{ strftime_now('%Y') }}", "{{ m.content }}" + CALLS)
    assert place(model, [USER], TemplateArgs([TOOL], clock=0.0)) == "tools"


def test_a_template_that_refuses_calls_says_so_itself(tmp_path: Path) -> None:
    refusing = "{% if m.tool_calls %}{{ raise_exception('No calls.') }}{% endif %}{{ m.content }}"
    with pytest.raises(Unrenderable, match="No calls"):
        of_its_own(tmp_path, NAMES, refusing).prompt([USER, CALLING, FOUND], NO_ARGS, [])


def test_a_format_of_one_call_a_message_drops_none() -> None:
    def writes_one_call(messages: Any, args: TemplateArgs) -> str | None:
        return None if len(messages[1]["tool_calls"]) > 1 else f"{messages}{args}"

    assert not drops_some(writes_one_call)


def test_parts_that_are_refused_otherwise_are_not_dropped() -> None:
    def writes_only_this(messages: Any, args: TemplateArgs) -> str | None:
        return "written" if messages == [USER, CALLING, FOUND] and args == TOOLS else None

    assert dropped(writes_only_this, [USER, CALLING, FOUND], TOOLS) is None
    assert dropped(lambda messages, args: "always", [USER], NO_ARGS) is None
