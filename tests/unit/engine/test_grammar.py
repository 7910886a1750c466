"""Answers under a grammar: what a JSON schema, a regex or an EBNF allows, and nothing else."""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from rolloutfleet_engine import grammar
from rolloutfleet_engine.model import Model


class Step(BaseModel):
    explanation: str
    confidence: float = Field(ge=0, le=1)


class Plan(BaseModel):
    title: str = Field(pattern=r"^[A-Z][a-z]{2,8}$")
    kind: Literal["short", "long"]
    steps: list[Step] = Field(min_length=1, max_length=3)
    parent: "Plan | None" = None


class Plain(BaseModel):
    city: str
    days: int


@pytest.mark.parametrize("form", [Plain, Plan])
@pytest.mark.parametrize("seed", range(5))
async def test_a_json_schema_is_honoured(
    engine: Callable[..., Any], prompt: list[int], form: type[BaseModel], seed: int
) -> None:
    schema = json.dumps(form.model_json_schema())
    reply = await engine(noncanonical=0.3).generate(
        prompt, sampling_params={"json_schema": schema, "sampling_seed": seed, "max_new_tokens": 2000}
    )
    assert reply["meta_info"]["finish_reason"]["type"] == "stop"
    form.model_validate_json(reply["text"])


@pytest.mark.parametrize("regex", [r"(yes|no)", r"[A-Z]{3}-\d{4}", r"(ab)+c?"])
async def test_a_regex_is_honoured(engine: Callable[..., Any], prompt: list[int], regex: str) -> None:
    for seed in range(5):
        reply = await engine().generate(prompt, sampling_params={"regex": regex, "sampling_seed": seed})
        assert re.fullmatch(regex, reply["text"])


async def test_an_ebnf_is_honoured(engine: Callable[..., Any], prompt: list[int]) -> None:
    reply = await engine().generate(prompt, sampling_params={"ebnf": 'root ::= "a" digit+\ndigit ::= [0-9]'})
    assert re.fullmatch(r"a\d+", reply["text"])


CALL, CALLED, THINK, THOUGHT = "<tool_call>", "</tool_call>", "<think>", "</think>"


def call_tag(model: Model, schema: dict[str, Any], *, thinking: bool = False) -> str:
    """One call of `find`, behind reasoning where the model may think."""

    def token(mark: str) -> dict[str, Any]:
        return {"type": "token", "token": model.token_id(mark)}

    free = {"type": "any_text", "excludes": [CALL, CALLED, THINK, THOUGHT]}
    thought = {"type": "tag", "begin": THINK, "content": free, "end": THOUGHT}
    call = [
        *([{"type": "optional", "content": thought}] if thinking else []),
        token(CALL),
        {"type": "const_string", "value": '\n{"name": "find", "arguments": '},
        {"type": "json_schema", "json_schema": schema},
        {"type": "const_string", "value": "}\n" + CALLED},
    ]
    return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": call}})


@pytest.mark.parametrize("thinking", [False, True])
async def test_a_structural_tag_is_honoured(
    engine: Callable[..., Any], prompt: list[int], model: Model, thinking: bool
) -> None:
    tag = call_tag(model, Plan.model_json_schema(), thinking=thinking)
    for seed in range(5):
        reply = await engine(noncanonical=0.3).generate(
            prompt, sampling_params={"structural_tag": tag, "sampling_seed": seed, "max_new_tokens": 2000}
        )
        assert reply["meta_info"]["finish_reason"]["type"] == "stop"
        ids = reply["output_ids"]
        assert ids.count(model.token_id(CALL)) == ids.count(model.token_id(CALLED)) == 1
        body = json.loads(model.decode(ids[ids.index(model.token_id(CALL)) + 1 : ids.index(model.token_id(CALLED))]))
        assert body["name"] == "find"
        Plan.model_validate(body["arguments"])


LAST_ARGUMENT = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "<a>"},
        {"type": "any_text", "excludes": ["</a>", "</f>"]},
        {"type": "const_string", "value": "</a></f>"},
    ],
}


@pytest.mark.parametrize(
    ("form", "suits"),
    [
        ({"type": "json_schema", "json_schema": {"type": "object", "additionalProperties": False}}, "{}"),
        ({"type": "regex", "pattern": "[xy]/z\\/w"}, "[xy]/z/w"),
        ({"type": "grammar", "grammar": 'root ::= "a/" digit+\ndigit ::= [0-9]'}, r"a/\d+"),
        (LAST_ARGUMENT, r"<a>(?s:(?!</[af]>).)*</a></f>"),
    ],
)
async def test_a_grammar_behind_a_thought_is_honoured(
    engine: Callable[..., Any], prompt: list[int], model: Model, form: dict[str, Any], suits: str
) -> None:
    thought = {"type": "any_text", "excludes": [THINK, THOUGHT, "<|im_end|>"]}
    elements = [thought, {"type": "token", "token": model.token_id(THOUGHT)}, form]
    tag = json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})
    for seed in range(5):
        reply = await engine().generate(prompt, sampling_params={"structural_tag": tag, "sampling_seed": seed})
        _, _, behind = model.decode(reply["output_ids"], skip_special_tokens=False).partition(THOUGHT)
        assert re.fullmatch(suits, behind.removesuffix("<|im_end|>"))


async def test_a_script_that_suits_a_structural_tag_is_used(
    engine: Callable[..., Any], prompt: list[int], model: Model
) -> None:
    plain = await engine().generate(prompt)
    anything = {"type": "structural_tag", "format": {"type": "any_text", "excludes": []}}
    held = await engine().generate(prompt, sampling_params={"structural_tag": json.dumps(anything)})
    assert held["output_ids"] == plain["output_ids"]


async def test_the_same_seed_gives_the_same_answer_under_a_grammar(
    engine: Callable[..., Any], prompt: list[int]
) -> None:
    sampling = {"json_schema": json.dumps(Plan.model_json_schema()), "sampling_seed": 3}
    first, second = [await engine().generate(prompt, sampling_params=sampling) for _ in range(2)]
    assert first["output_ids"] == second["output_ids"]


async def test_a_part_that_is_sent_again_begins_the_grammar_anew(engine: Callable[..., Any], prompt: list[int]) -> None:
    """SGLang 0.5.23 knows nothing of the part: to it that is prompt."""
    sampling = {"json_schema": json.dumps(Plain.model_json_schema())}
    whole = await engine().generate(prompt, sampling_params=sampling)
    again = await engine().generate([*prompt, *whole["output_ids"][:3]], sampling_params=sampling)
    Plain.model_validate_json(again["text"])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 900_000, "items": {"type": "boolean"}},
        {"type": "string", "minLength": 900_000},
        {"type": "array", "minItems": 999, "items": {"type": "array", "minItems": 999, "items": {"type": "null"}}},
    ],
)
async def test_a_schemas_wishes_are_written_no_further_than_the_turn_goes(
    engine: Callable[..., Any], prompt: list[int], schema: Any
) -> None:
    sampling = {"json_schema": json.dumps(schema), "max_new_tokens": 50}
    reply = await engine().generate(prompt, sampling_params=sampling)
    assert (len(reply["output_ids"]), reply["meta_info"]["finish_reason"]["type"]) == (50, "length")


@pytest.mark.parametrize(
    "sampling",
    [
        {"json_schema": "{"},
        {"json_schema": '{"type": "nothing"}'},
        {"regex": "(a"},
        {"ebnf": "root ::= ("},
        {"ebnf": "root ::= missing"},
        {"ebnf": "no rules"},
        {"ebnf": 'other ::= "a"'},
        {"json_schema": '{"type": "array", "minItems": 1e9}'},
        {"json_schema": '{"type": "string", "minLength" : 100000000}'},
        {"regex": "a{1000000000}"},
        {"ebnf": 'root ::= ("a" "b"){2, 9999999}'},
        {"structural_tag": "{"},
        {"structural_tag": "[]"},
        {"structural_tag": '{"format": {"type": "grammar", "grammar": "a"}}'},
        {"structural_tag": '{"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}'},
    ],
)
async def test_what_is_no_grammar_is_refused(
    engine: Callable[..., Any], prompt: list[int], sampling: dict[str, str]
) -> None:
    asker = engine()
    reply = await asker.post("/generate", **asker.body(prompt, sampling_params=sampling))
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert "grammar" in message
    event, done = [each async for each in asker.events(prompt, sampling_params=sampling)]
    aborted = json.loads(event)
    refusal = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
    assert done == "[DONE]" and aborted["meta_info"]["finish_reason"] == refusal
    assert (aborted["output_ids"], aborted["meta_info"]["prompt_tokens"]) == ([0], 1), "as SGLang's queue answers"
    assert (await asker.counters())["refused"] == 2


async def test_an_answer_that_takes_too_long_is_given_up(
    engine: Callable[..., Any], prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "thread_time", itertools.count().__next__)
    asker = engine()
    endless = {"regex": "[a-z]{500}", "max_new_tokens": 500}
    reply = await asker.post("/generate", **asker.body(prompt, sampling_params=endless))
    assert reply.status_code == 400 and "after 2 s it had 2 tokens" in reply.json()["error"]["message"]
    assert (await asker.generate(prompt, sampling_params={"regex": "a"}))["text"] == "a"
