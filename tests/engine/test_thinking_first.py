"""A thought before what a request asks for, by the compiler of the real engine."""

import json
from pathlib import Path
from typing import Any

from tests.engine.sglang.drawing import drawn
from tests.engine.sglang.places import Installed
from tests.unit.proxy.tokens.test_call_grammar import tokens_of, wanted
from tests.unit.proxy.tokens.test_thinking_first import GRAMMARS, THINKING, Held, before_answer, held


def case_of(file: Path, replies: list[Held], written: list[list[str]]) -> dict[str, Any]:
    """What `draw.py` takes; it makes its tokenizer from `file`. Grammars of tool calls go through the same compiler in
    an engine."""
    model, prompt = replies[0].model, replies[0].prompt
    model.vocabulary._tokenizer.save(str(file))
    calls = [model.grammar.of_calls(prompt, wanted(["stop"]))] if model.grammar.holds_calls else []
    named = {token for tag in (replies[0].tag, *calls) for token in tokens_of(json.loads(tag)["format"])}
    return {
        "tokenizer": str(file),
        "stop": model.stop_token_ids[0],
        "marks": sorted(named | {mark for reply in replies for mark in reply.kept_out}),
        "ends": [],
        "tags": [
            *(
                {"tag": reply.tag, "written": [reply.encoded(text) for text in texts]}
                for reply, texts in zip(replies, written, strict=True)
            ),
            *({"tag": tag, "written": []} for tag in calls),
        ],
    }


def _object(text: str) -> dict[str, Any]:
    """A JSON object; an empty one where the text is none."""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return found


def test_replies_of_the_engines_compiler_are_read_as_a_thought_and_an_answer(sglang: Installed, tmp_path: Path) -> None:
    cases = []
    for name in THINKING:
        thought = before_answer(name, tmp_path)
        replies = [held(name, tmp_path, kind) for kind in GRAMMARS]
        written = [[thought + answer, thought + "Look at this."] for _, answer in GRAMMARS.values()]
        cases.append(case_of(tmp_path / f"{name}.json", replies, written))
    for name, tags in zip(THINKING, drawn(sglang, cases, tmp_path), strict=True):
        for kind, tag in zip(GRAMMARS, tags[: len(GRAMMARS)], strict=True):
            reply = held(name, tmp_path, kind)
            assert tag["taken"] == [True, False], (name, kind, reply.tag)
            for ids in tag["drawn"]:
                if not set(reply.model.stop_token_ids).isdisjoint(ids):
                    continue  # an engine stops there
                content = reply.read(ids)["content"]
                if kind == "json_schema":
                    assert isinstance(_object(content).get("city"), str), (name, reply.model.vocabulary.decode(ids))
                else:
                    assert reply.takes(before_answer(name, tmp_path) + content), (name, content)
