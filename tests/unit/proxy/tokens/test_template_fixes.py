"""Tools of DeepSeek V3 and R1, in the form of SGLang's templates, of which this is written out; and what stands between
the calls of GLM-4.5."""

import json
from pathlib import Path

import pytest
from tests.chat_formats import extending, load
from tests.unit.proxy.tokens.models.families import FAMILIES, chat_format, deepseek, write_model

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.render import Candidate

TOOL = {"type": "function", "function": {"name": "find", "description": "Finds 東京.", "parameters": {"a": "\u2028"}}}
ARGS = TemplateArgs([TOOL, TOOL])
TOLD = (
    "You are a helpful assistant with tool calling capabilities. When a tool call is needed, you MUST use the following"
    f" format to issue the call:\n{deepseek('tool calls begin')}{deepseek('tool call begin')}function"
    f'{deepseek("tool sep")}FUNCTION_NAME\n```json\n{{"param1": "value1", "param2": "value2"}}\n```'
    f"{deepseek('tool call end')}{deepseek('tool calls end')}\n\nMake sure the JSON is valid.## Tools\n\n"
    "### Function\n\nYou have the following functions available:\n\n"
) + 2 * f"\n```json\n{json.dumps(TOOL, ensure_ascii=False)}\n```\n"
USER: Message = {"role": "user", "content": "Hello?"}
CALLS = [
    {"id": each, "type": "function", "function": {"name": "find", "arguments": f'{{"q": "{each}"}}'}} for each in "ab"
]
RESULTS: list[Message] = [{"role": "tool", "tool_call_id": each, "content": f"R{each}"} for each in "ab"]
OUTPUTS = (
    "Use the results below to formulate an answer to the user question unless additional information is needed."
    f"{deepseek('tool outputs begin')}{deepseek('tool output begin')}Ra{deepseek('tool output end')}\n"
    f"{deepseek('tool output begin')}Rb{deepseek('tool output end')}{deepseek('tool outputs end')}"
)
WRITTEN = "\n".join(
    f'{deepseek("tool call begin")}function{deepseek("tool sep")}find\n```json\n{{"q": "{each}"}}\n```'
    f"{deepseek('tool call end')}"
    for each in "ab"
)
BOTH = {"deepseek-v3": "", "deepseek-r1": "<think>\n"}


@pytest.mark.parametrize(("name", "opened"), BOTH.items())
@pytest.mark.parametrize("system", [[], ["Be brief."], ["Be brief.", "Be kind."]])
def test_tools_stand_behind_the_system_prompt(models: Path, name: str, opened: str, system: list[str]) -> None:
    model = chat_format(name, models)
    messages = [*({"role": "system", "content": each} for each in system), USER]
    text = model.vocabulary.decode(model.prompt(messages, ARGS, []).ids)
    said = "\n\n".join([*(system or [""]), TOLD])
    start, end = f"{deepseek('begin of sentence')}{said}", f"{deepseek('User')}Hello?{deepseek('Assistant')}{opened}"
    assert text == start + end
    assert model.vocabulary.decode(model.prompt(messages, NO_ARGS, []).ids) == text.replace(f"\n\n{TOLD}", "")


@pytest.mark.parametrize(("name", "opened"), BOTH.items())
def test_calls_and_results_are_written_as_the_template_does(models: Path, name: str, opened: str) -> None:
    model = chat_format(name, models)
    messages = [USER, {"role": "assistant", "content": "So.", "tool_calls": CALLS}, *RESULTS]
    text = model.vocabulary.decode(model.prompt(messages, ARGS, []).ids)
    made = f"{deepseek('tool calls begin')}{WRITTEN}{deepseek('tool calls end')}{deepseek('end of sentence')}"
    assert text.endswith(f"{deepseek('Assistant')}So.{made}{OUTPUTS}{opened}")


@pytest.mark.parametrize(("name", "opened"), BOTH.items())
def test_a_turn_is_extended_by_what_is_written_behind_it(models: Path, name: str, opened: str) -> None:
    model = chat_format(name, models)
    prompt = model.prompt([USER], ARGS, []).ids
    made = f"{deepseek('tool calls begin')}{WRITTEN}{deepseek('tool calls end')}{deepseek('end of sentence')}"
    text = f"{'Hm.</think>' if opened else ''}So.{made}"
    output = model.vocabulary.encode(text, add_special_tokens=False)
    messages = [USER, {"role": "assistant", "content": "So.", "tool_calls": CALLS}, *RESULTS]
    extended = model.prompt(messages, ARGS, [Candidate(2, lambda: (prompt, output))], render=extending(model))
    assert extended.ids[: len(prompt) + len(output)].tolist() == [*prompt, *output]
    assert model.vocabulary.decode(extended.ids[len(prompt) + len(output) :]) == f"{OUTPUTS}{opened}"


@pytest.mark.parametrize("args", [ARGS, NO_ARGS], ids=["tools", "no tools"])
@pytest.mark.parametrize("content", ["So.", ""])
def test_calls_of_glm_stand_on_lines_of_their_own(models: Path, content: str, args: TemplateArgs) -> None:
    model = chat_format("glm-4.5", models)
    messages = [USER, {"role": "assistant", "content": content, "tool_calls": [*CALLS, CALLS[0]]}, *RESULTS]
    text = model.vocabulary.decode(model.prompt(messages, args, []).ids)
    made = "".join(
        f"\n<tool_call>find\n<arg_key>q</arg_key>\n<arg_value>{each}</arg_value>\n</tool_call>" for each in "aba"
    )
    assert f"{content}{made}<|observation|>" in text


@pytest.mark.parametrize(("tools", "expected"), [("", "deepseek-v3"), ("{{ tools | tojson if tools }}", "default")])
def test_a_template_that_tells_of_tools_in_another_way_stays(tmp_path: Path, tools: str, expected: str) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<User>{{ m.content }}{% elif m.role == "
        "'assistant' %}<Assistant>{{ m.content }}<end of sentence>{% else %}{{ m.content }}{% endif %}{% endfor %}"
        f"{tools}{{% if add_generation_prompt %}}<Assistant>{{% endif %}}"
    )
    for name in ("User", "Assistant", "end of sentence"):
        template = template.replace(f"<{name}>", deepseek(name))
    directory = write_model(tmp_path / "m", FAMILIES["deepseek-v3"], config={"model_type": "deepseek_v3"})
    (directory / "chat_template.jinja").write_text(template.replace("{{ bos_token }}", deepseek("begin of sentence")))
    assert load(directory).name == expected
