"""Small inputs after public reports of chat formats gone wrong, each with its right result (`chat_formats.jsonl`).

A case holds for each of its `formats`. `do` says what is tried: a call with an `argument` is written and read, words
are put into a reply as the format writes it (`spoken`), a `reply` is read, or a `prompt` is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, chat_format, tokenizer_of
from tests.unit.proxy.tokens.models.measuring import ASKED, THOUGHT, TOOLS, _calls, _replies, _thinking, _written

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import ChatFormat

Case = dict[str, Any]
CASES: list[Case] = [
    json.loads(line) for line in (Path(__file__).parent / "chat_formats.jsonl").read_text().splitlines()
]


def read(model: ChatFormat, args: TemplateArgs, output: Sequence[int]) -> Message:
    return model.reader(model.prompt(ASKED, args, []).ids, args, seed=b"a").read(output).message


def calls_of(message: Message) -> list[list[Any]]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [[function["name"], json.loads(function["arguments"])] for function in functions]


def check_argument(case: Case, name: str, model: ChatFormat) -> None:
    declared = {"type": "object", "properties": {"v": case.get("schema")}, **case.get("more", {})}
    function = {"name": "f", "description": "d", "parameters": case.get("parameters") or declared}
    args = TemplateArgs([{"type": "function", "function": function}])
    calls = [("f", {"v": case["value"]})]
    outputs = chain(_written(model, args, "", calls), _replies(name, model, args, THOUGHT, calls, spelled=True))
    [[called, arguments]] = calls_of(read(model, args, next(outputs)))
    assert (called, arguments) == ("f", {"v": case["value"]}) and type(arguments["v"]) is type(case["value"])


def check_spoken(case: Case, name: str, model: ChatFormat) -> None:
    thinks, args = _thinking(name, model, _calls(name))
    outputs = _replies(name, model, args, THOUGHT if thinks else "", _calls(name), spelled=True)
    output = next(each for each in outputs if len(calls_of(read(model, args, each))) == len(_calls(name)))
    end = output[-1:] if output[-1] in model.stop_token_ids else output[:0]
    text = _CHANGES[case["op"][0]](model.vocabulary.decode(output[: len(output) - len(end)]), *case["op"][1:])
    message = read(model, args, [*model.vocabulary.encode(text, add_special_tokens=False), *end])
    assert_says(message, case["keeps"])


_CHANGES: dict[str, Callable[..., str]] = {
    "append": lambda text, more: text + more,
    "after_first": lambda text, mark, more: text.replace(mark, mark + more, 1),
    "before_last": lambda text, mark, more: (more + mark).join(text.rsplit(mark, 1)),
    "replace": lambda text, mark, other: text.replace(mark, other, 1),
}


def check_reply(case: Case, name: str, model: ChatFormat) -> None:
    stop = case["stop"]
    end = model.stop_token_ids[0] if stop is None else model.vocabulary.convert_tokens_to_ids(stop)
    output = [*model.vocabulary.encode(case["text"], add_special_tokens=False), end]
    message = read(model, TemplateArgs(case.get("tools", TOOLS)), output)
    if "one_of" in case:
        assert calls_of(message) in case["one_of"]
        assert message.get("tool_calls") or "content" in case or "find" in message["content"]
    assert_says(message, case.get("keeps", ()))
    assert message["content"] == case.get("content", message["content"])


def assert_says(message: Message, texts: Sequence[str]) -> None:
    said = json.dumps(message, ensure_ascii=False)
    assert [text for text in texts if text not in said] == []


def check_prompt(case: Case, name: str, model: ChatFormat) -> None:
    args = TemplateArgs(case.get("tools", TOOLS))

    def written(messages: list[Message]) -> str:
        return model.vocabulary.decode(model.prompt(messages, args, []).ids)

    try:
        text = written(case["messages"])
    except Unrenderable:
        assert "refused_or_has" in case or "or_refused" in case
        return
    if "same_as" in case:
        assert text == written(case["same_as"])
    places = [text.find(word) for word in case.get("order", ())]
    assert places == sorted(places)
    assert [word for word in (case.get("has") or case.get("refused_or_has") or ()) if word not in text] == []


def own_template(case: Case, folder: Path) -> ChatFormat:
    """A model of the case's family with a template of its own."""
    family = FAMILIES[case.get("family", "qwen3")]
    tokenizer_of(family).save(str(folder / "tokenizer.json"))
    tokens = {"eos_token": family.special[-1], "bos_token": family.special[0], "chat_template": case["template"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    config = {"max_position_embeddings": 4096, **({"model_type": case["model_type"]} if "model_type" in case else {})}
    (folder / "config.json").write_text(json.dumps(config))
    return load(folder)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_case_comes_out_right_in_each_of_its_formats(models: Path, tmp_path: Path, case: Case) -> None:
    check = partial(globals()[f"check_{case['do']}"], case)
    for name in case["formats"]:
        check(name, own_template(case, tmp_path) if name == "own template" else chat_format(name, models))
