"""Grammars that let a model think first: what they allow is read as a thought, and as what the request asked for."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tests.unit.proxy.tokens.models.families import chat_format
from tests.unit.proxy.tokens.models.measuring import ARGUMENTS, ASKED, replies
from tests.unit.proxy.tokens.models.page import NAMES
from tests.unit.proxy.tokens.test_call_grammar import free_texts, tokens_of, wanted

from rolloutfleet_engine.structural_tags import example_of_tag, lark_of
from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.tokens.render import ChatFormat

OPENED_BY_DEFAULT = {
    *("deepseek-r1", "glm-5", "glm-5.1", "glm-5.3", "gpt-oss", "kimi-k2.5", "laguna-s-2.1", "minimax-m2"),
    *("nemotron-3", "nemotron-3-ultra", "nemotron-3.5", "qwen3.5", "qwen3.6", "qwen3.8"),
}
LEFT_TO_THE_MODEL = {"qwen3", "qwen3-vl", "prime-qwen3", "glm-4.5", "gemma4", "inkling"}
OPENED_IF_ASKED = {"deepseek-v4", "hy3", "laguna-m.1", "laguna-xs.2", "laguna-xs-2.1"}
NEVER = {"llama-3", "deepseek-v3", "kimi-k2"}
"""Those whose vocabularies, as the tests make them, have no marks of thoughts."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWER = '{"city": "Oslo", "days": 3}'
GRAMMARS: Mapping[str, tuple[str, str]] = {
    "json_schema": (json.dumps(SCHEMA), ANSWER),
    "regex": (r"[a-c]{2}/\d+", "ab/12"),
    "ebnf": ('root ::= "yes " [0-9]+', "yes 17"),
}
"""A grammar and what suits it, by SGLang's sampling parameter."""


@cache
def tokenizer_of(model: ChatFormat) -> LLTokenizer:
    return LLTokenizer(model.vocabulary._tokenizer.to_str(), eos_token=model.stop_token_ids[0])


class Held:
    """A reply to one prompt that is held to a grammar behind a thought."""

    def __init__(self, model: ChatFormat, kwargs: Mapping[str, Any] | None, sampling: dict[str, str]) -> None:
        self.model, self.args = model, TemplateArgs(None, kwargs or None)
        self.prompt = model.prompt(ASKED, self.args, []).ids
        tag = model.grammar.thinking_first(self.prompt, sampling)
        assert tag is not None
        self.tag = tag
        marks = {model.vocabulary.decode([mark]): mark for mark in model.vocabulary.marks}
        grammar = LLMatcher.grammar_from_lark(lark_of(tag, marks))
        self.matcher = LLMatcher(tokenizer_of(model), grammar, log_level=0)
        assert not self.matcher.is_error(), self.matcher.get_error()

    @property
    def kept_out(self) -> list[int]:
        """The marks that a thought never holds."""
        (texts,) = [form["excludes"] for form in free_texts(json.loads(self.tag)["format"])]
        return [mark for mark in self.model.vocabulary.marks if self.model.vocabulary.decode([mark]) in texts]

    def encoded(self, text: str) -> list[int]:
        return self.model.vocabulary.encode(text, add_special_tokens=False)

    def takes(self, text: str) -> bool:
        ids = self.encoded(text)
        self.matcher.reset()
        taken = self.matcher.validate_tokens(ids)
        return taken == len(ids) and self.matcher.consume_tokens(ids) and self.matcher.is_accepting()

    def read(self, ids: Sequence[int]) -> Message:
        return self.model.reader(self.prompt, self.args, seed=b"a").read([*ids, self.model.stop_token_ids[0]]).message


def held(name: str, models: Path, kind: str) -> Held:
    """Under the arguments with which the format thinks."""
    model = chat_format(name, models)
    return Held(model, replies(name, model).args.kwargs, {kind: GRAMMARS[kind][0]})


def before_answer(name: str, models: Path) -> str:
    """A thought as the format writes it in a reply, up to where the answer begins."""
    model = chat_format(name, models)
    replied = replies(name, model)
    text = model.vocabulary.decode(replied.final)
    return text[: text.index("Look at this.")]


def test_every_format_is_one_that_thinks_or_one_that_does_not() -> None:
    kinds = (OPENED_BY_DEFAULT, LEFT_TO_THE_MODEL, OPENED_IF_ASKED, NEVER)
    assert sorted(name for kind in kinds for name in kind) == NAMES and len(OPENED_BY_DEFAULT) == 14


THINKING = sorted(OPENED_BY_DEFAULT | LEFT_TO_THE_MODEL | OPENED_IF_ASKED)


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("name", THINKING)
def test_an_answer_behind_a_thought_is_the_content(models: Path, name: str, kind: str) -> None:
    reply, answer = held(name, models, kind), GRAMMARS[kind][1]
    thought = before_answer(name, models)
    for gap in {thought, thought.rstrip("\n")}:
        assert reply.takes(gap + answer)
        read = reply.read(reply.encoded(gap + answer))
        assert (read["content"], read["reasoning_content"].strip()) == (answer, "Let me see.")
    assert not reply.takes(thought + "Look at this.") and not reply.takes(thought)


@pytest.mark.parametrize("name", sorted(OPENED_BY_DEFAULT | OPENED_IF_ASKED))
def test_a_thought_that_the_prompt_opens_must_end_before_the_answer(models: Path, name: str) -> None:
    reply = held(name, models, "json_schema")
    assert not reply.takes(ANSWER) and not reply.takes("Let me see." + ANSWER)


@pytest.mark.parametrize("name", sorted(LEFT_TO_THE_MODEL))
def test_a_thought_that_the_prompt_leaves_open_may_be_left_out(models: Path, name: str) -> None:
    reply = held(name, models, "json_schema")
    assert reply.takes(ANSWER) and reply.read(reply.encoded(ANSWER))["content"] == ANSWER


@pytest.mark.parametrize("name", THINKING)
def test_drawn_replies_are_read_as_a_thought_and_json(models: Path, name: str) -> None:
    reply = held(name, models, "json_schema")
    thoughts = set()
    for seed in range(20):
        ids = example_of_tag(reply.tag, reply.encoded, random.Random(seed))
        reply.matcher.reset()
        assert reply.matcher.consume_tokens(ids) and reply.matcher.is_accepting()
        read = reply.read(ids)
        assert isinstance(json.loads(read["content"])["city"], str)
        thoughts.add(bool(read.get("reasoning_content")))
    assert thoughts == ({True, False} if name in LEFT_TO_THE_MODEL else {True})


@pytest.mark.parametrize("name", NAMES)
def test_prompts_leave_thoughts_as_the_format_writes_them(models: Path, name: str) -> None:
    model = chat_format(name, models)
    found = {}
    for kwargs in (*ARGUMENTS, {"enable_thinking": False}):
        if all(map(model.takes, kwargs)) and not (name == "qwen3.8" and "reasoning_effort" in kwargs):
            prompt = model.prompt(ASKED, TemplateArgs(None, kwargs or None), []).ids
            found[json.dumps(kwargs)] = model.grammar.thinking_first(prompt, {"regex": "a"}) is not None
    assert found.pop("{}") == (name in OPENED_BY_DEFAULT | LEFT_TO_THE_MODEL)
    closed = found.pop('{"enable_thinking": false}', False)
    assert closed == (name == "gemma4")  # Its prompt is the same.
    assert any(found.values()) or name not in OPENED_IF_ASKED


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1}, {"structural_tag": "{}"}])
def test_a_reply_without_a_grammar_or_with_a_tag_of_its_own_is_as_asked(models: Path, sampling: dict[str, Any]) -> None:
    model = chat_format("qwen3.5", models)
    assert model.grammar.thinking_first(model.prompt(ASKED, TemplateArgs(), []).ids, sampling) is None


@pytest.mark.parametrize("name", THINKING)
def test_tokens_come_in_the_order_of_the_grammars_of_calls(models: Path, name: str) -> None:
    """xgrammar 0.2.7 knows a token by its place among those of its grammar, and so in what it keeps for others."""
    reply = held(name, models, "regex")
    order = list(dict.fromkeys(tokens_of(json.loads(reply.tag)["format"])))
    if reply.model.grammar.holds_calls:
        calls = tokens_of(json.loads(reply.model.grammar.of_calls(reply.prompt, wanted()))["format"])
        before = list(dict.fromkeys(calls))
        assert order[: len(before)] == before
        assert set(order[len(before) :]) <= set(reply.kept_out)
