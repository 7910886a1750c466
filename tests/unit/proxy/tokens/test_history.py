"""Calls and results of a conversation: their arguments, the order of results, and ids."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat_formats import extending, load
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS, chat_format, write_model

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.history import Ids, with_calls_told
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat

FORMATS = [*FAMILIES, *VARIANTS]
KIMI = ["kimi-k2", "kimi-k2.5"]
PARALLEL = [name for name in FORMATS if name not in (*KIMI, "llama-3")]
USER: Message = {"role": "user", "content": "Hello?"}
TOOLS = TemplateArgs([{"type": "function", "function": {"name": "find", "description": "Finds."}}])


def call(call_id: str | None, arguments: Any = "{}", name: str = "find") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any]) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: str, content: str = "R") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def written(model: ChatFormat, messages: Sequence[Message]) -> str:
    return model.vocabulary.decode(model.prompt(messages, TOOLS, []).ids)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_without_arguments_has_an_empty_object(models: Path, name: str) -> None:
    model, call_id = chat_format(name, models), "functions.find:0"
    expected = written(model, [USER, calling(call(call_id)), result(call_id)])
    lacking: list[Any] = [None, "", " \n", "null", " null ", {}]
    for arguments in lacking:
        assert written(model, [USER, calling(call(call_id, arguments)), result(call_id)]) == expected, arguments
    absent = call(call_id)
    del absent["function"]["arguments"]
    assert written(model, [USER, calling(absent), result(call_id)]) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_that_are_no_object_are_refused_with_their_place(models: Path, name: str) -> None:
    model = chat_format(name, models)
    for arguments in ('{"q": "cut', "prose", "[1]", "1", '"{}"', '{"n": NaN}', "{} {}", '{"a": ' * 5000, ["x"]):
        messages = [USER, calling(call("a")), result("a"), calling(call("b", arguments)), result("b")]
        with pytest.raises(Unrenderable, match="must be a JSON object") as caught:
            model.prompt(messages, NO_ARGS, [])
        assert caught.value.param == "messages[3].tool_calls[0].function.arguments", arguments


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2"])
def test_a_turn_that_is_extended_keeps_what_it_said(models: Path, name: str) -> None:
    model = chat_format(name, models)
    prompt = model.prompt([USER], NO_ARGS, []).ids
    output = model.vocabulary.encode("Odd.<|im_end|>", add_special_tokens=False)
    messages = [USER, calling(call("a", "cut{")), result("a")]
    assert model.prompt(messages, NO_ARGS, [Candidate(2, lambda: (prompt, output))]).parent == 0


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "gemma4"])
def test_a_result_extends_the_turn_of_its_call(models: Path, name: str) -> None:
    model, call_id = chat_format(name, models), "functions.find:0"
    prompt = model.prompt([USER], TOOLS, []).ids
    output = [*model.vocabulary.encode("One call.", add_special_tokens=False), model.stop_token_ids[0]]
    messages = [USER, calling(call(call_id)), result(call_id)]
    candidates = [Candidate(2, lambda: (prompt, output))]
    extended = model.prompt(messages, TOOLS, candidates, render=extending(model)).ids
    assert written(model, messages).endswith(
        model.vocabulary.decode(extended[len(prompt) + len(output) :]).lstrip("\n")
    )


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("laguna")])
def test_lagunas_line_break_stands_behind_an_extended_turn(models: Path, name: str) -> None:
    model = chat_format(name, models)
    prompt = model.prompt([USER], NO_ARGS, []).ids
    for written_end in ("</assistant>", "\u3008|EOS|\u3009"):
        output = model.vocabulary.encode(f"So.</think>Fine.{written_end}")
        messages = [USER, {"role": "assistant", "content": "Fine."}, USER]
        extended = model.prompt(messages, NO_ARGS, [Candidate(2, lambda output=output: (prompt, output))])  # type: ignore[misc]
        assert extended.parent == 0
        text = model.vocabulary.decode(extended.ids[len(prompt) + len(output) :])
        assert model.vocabulary.decode(model.full(messages, NO_ARGS)).endswith(f"</assistant>{text}")


def test_inkling_writes_no_text_of_a_call_without_content(models: Path) -> None:
    model = chat_format("inkling", models)
    text = written(model, [USER, calling(call("a")), result("a")])
    assert "Hello?<|end_message|><|message_model|>find<|content_invoke_tool_json|>" in text


@given(
    st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=3)
)
def test_arguments_that_are_an_object_stay_as_they_came(arguments: dict[str, Any]) -> None:
    for form in (arguments, json.dumps(arguments, indent=1), json.dumps(arguments, ensure_ascii=False)):
        messages = [USER, calling(call("a", form))]
        assert with_calls_told(messages, "unwritten")[1]["tool_calls"][0]["function"]["arguments"] == form


@pytest.mark.parametrize("name", PARALLEL)
def test_results_have_the_order_of_their_calls(models: Path, name: str) -> None:
    model = chat_format(name, models)
    made = calling(call("a1"), call("b2", name="look_up"), call("c3"))
    results = [result("a1", "RA"), result("b2", "RB"), result("c3", "RC")]
    expected = written(model, [USER, made, *results])
    assert expected.index("RA") < expected.index("RB") < expected.index("RC")
    assert written(model, [USER, made, *reversed(results)]) == expected


@pytest.mark.parametrize("name", PARALLEL)
def test_results_behind_an_extended_turn_have_the_order_of_its_calls(models: Path, name: str) -> None:
    model = chat_format(name, models)
    made, results = calling(call("a1"), call("b2")), [result("b2", "RB"), result("a1", "RA")]
    prompt = model.prompt([USER], TOOLS, []).ids
    output = [*model.vocabulary.encode("Two calls.", add_special_tokens=False), model.stop_token_ids[0]]
    made_of = [Candidate(2, lambda: (prompt, output))]
    one, other = (model.prompt([USER, made, *each], TOOLS, made_of) for each in (results, results[::-1]))
    assert one.ids == other.ids
    text = model.vocabulary.decode(one.ids)
    assert text.index("RA") < text.index("RB")


@pytest.mark.parametrize("name", KIMI)
def test_results_stay_as_they_came_where_ids_are_written(models: Path, name: str) -> None:
    text = written(
        chat_format(name, models), [USER, calling(call("a"), call("b")), result("b", "RB"), result("a", "RA")]
    )
    assert text.index("RB") < text.index("RA")


@pytest.mark.parametrize("name", PARALLEL)
def test_an_id_that_comes_again_names_the_newest_call(models: Path, name: str) -> None:
    def history(*ids: str) -> list[Message]:
        made = [[calling(call(each, name=function)), result(each)] for each, function in zip(ids, "fgh", strict=True)]
        return [USER, *(message for each in made for message in each)]

    model = chat_format(name, models)
    assert written(model, history("a", "a", "a")) == written(model, history("a", "b", "c"))


@pytest.mark.parametrize("ids", get_args(Ids))
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), st.permutations(range(3))), max_size=4
    ),
    st.integers(0, 4),
)
def test_the_end_of_a_history_is_written_alike_with_and_without_what_comes_before(
    ids: Ids, exchanges: list[tuple[list[str], list[int]]], covered: int
) -> None:
    history, ends = [USER], [0]
    for made, order in exchanges:
        ends.append(len(history) + 1)
        history += [calling(*map(call, made)), *(result(made[place]) for place in order if place < len(made))]
    start = ends[min(covered, len(ends) - 1)]
    assert with_calls_told(history, ids, start=start)[start:] == with_calls_told(history, ids)[start:]


@pytest.mark.parametrize("name", KIMI)
def test_kimi_is_told_the_function_by_ids_of_another_maker(models: Path, name: str) -> None:
    own = [USER, calling(call("functions.find:0"), call("functions.s.look_up:1", name="s.look_up"))]
    later = [calling(call("functions.find:2")), result("functions.find:2", "Z")]
    expected = [*own, result("functions.s.look_up:1", "Y"), result("functions.find:0", "X"), *later]
    given = [USER, calling(call("call_9f"), call(None, name="s.look_up")), result("y", "Y"), result("call_9f", "X")]
    given[1]["tool_calls"][1]["id"] = "y"
    model = chat_format(name, models)
    again = [calling(call("call_9f")), result("call_9f", "Z")]
    assert written(model, [*given, *again]) == written(model, expected)
    assert written(model, [*given, *later]) == written(model, expected)


@pytest.mark.parametrize("call_id", ["functions.find:7", "find:7", "find", "functions.find"])
def test_kimi_keeps_ids_that_name_the_function(models: Path, call_id: str) -> None:
    text = written(chat_format("kimi-k2", models), [USER, calling(call(call_id)), result(call_id)])
    assert f"<|tool_call_begin|>{call_id}<|tool_call_arg" in text and f"## Return of {call_id}\n" in text


@pytest.mark.parametrize("call_id", ["functions.look_up:0", "", None, "functions.find_it:0", "call_find"])
def test_kimi_is_told_the_function_by_every_other_id(models: Path, call_id: str | None) -> None:
    text = written(
        chat_format("kimi-k2", models), [USER, calling(call("find:0")), result("find:0"), calling(call(call_id))]
    )
    assert "<|tool_call_begin|>functions.find:1<|tool_call_arg" in text


def test_a_result_behind_an_extended_turn_has_the_id_that_the_model_wrote(models: Path) -> None:
    model = chat_format("kimi-k2", models)
    prompt = model.prompt([USER], NO_ARGS, []).ids
    output = model.vocabulary.encode("So.<|im_end|>", add_special_tokens=False)
    extended = model.prompt([USER, calling(call("x")), result("x")], NO_ARGS, [Candidate(2, lambda: (prompt, output))])
    assert extended.parent == 0 and "## Return of functions.find:0\nR" in model.vocabulary.decode(extended.ids)


@pytest.mark.parametrize(("tool_call_id", "order"), [("{{ m.tool_call_id }}", ["RBb", "RAa"]), ("", ["RA", "RB"])])
def test_a_models_own_template_is_asked_whether_it_writes_ids(
    tmp_path: Path, tool_call_id: str, order: list[str]
) -> None:
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    directory = write_model(tmp_path / "m", FAMILIES["qwen3"], config={"model_type": "of its own"})
    (directory / "chat_template.jinja").write_text(
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.content }}"
        f"{calls}{tool_call_id}<|im_end|>{{% endfor %}}"
    )
    made = calling(call("a"), call("b"))
    text = written(load(directory), [USER, made, result("b", "RB"), result("a", "RA")])
    assert text.index(order[0]) < text.index(order[1])
