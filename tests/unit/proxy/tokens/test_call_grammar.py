"""Grammars of tool calls: what they allow, the format's own parser reads as the calls that were wanted."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from llguidance import LLMatcher, LLTokenizer
from tests.unit.proxy.tokens.models.call_replies import HELD, SAME_AS, Held
from tests.unit.proxy.tokens.models.families import chat_format

from rolloutfleet_engine.structural_tags import example_of_tag, lark_of
from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.tokens.reply_grammar import Function, Wanted
from rolloutfleet_proxy.tokens.tool_schemas import arguments_schemas

PARAMETERS: dict[str, dict[str, Any]] = {
    "find": {
        "type": "object",
        "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["q"],
    },
    "look_up": {
        "type": "object",
        "properties": {
            "how deep": {"type": "boolean"},
            "mode": {"type": "string", "enum": ["all", "1"]},
            "kind": {"type": "string", "const": "2"},
            "sort": {"type": "string", "enum": ["3", None]},
            "unit": {"type": "string", "anyOf": [{"enum": ["4"]}, {"type": "string"}]},
            "who": {"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["how deep"],
        "$defs": {"Name": {"type": "string"}},
    },
    "stop": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS[name]}} for name in PARAMETERS]
ALL = tuple(PARAMETERS)
FIND: tuple[str, dict[str, Any]] = ("find", {"q": "naïve {x}", "n": 3})
STRINGS = {"mode": "1", "kind": "2", "sort": "3", "unit": "4"}
LOOK_UP: tuple[str, dict[str, Any]] = (
    "look_up",
    {"how deep": True, **STRINGS, "who": "Ann <a>", "tags": ["a", "</b>"]},
)
NOBODY: tuple[str, dict[str, Any]] = ("look_up", {"how deep": False, "who": None})
STOP: tuple[str, dict[str, Any]] = ("stop", {})
SCHEMA = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
ANSWER = '{"city": "Oslo"}'


@pytest.fixture(params=HELD)
def held(request: pytest.FixtureRequest) -> Held:
    return HELD[request.param]


def wanted(names: Sequence[str] = ALL, *, required: bool = True, single: bool = False) -> Wanted:
    functions = tuple(map(Function, names, arguments_schemas([PARAMETERS[name] for name in names])))
    return Wanted(functions=functions, required=required, single=single)


class Sample(NamedTuple):
    ids: list[int]
    allowed: bool


@cache
def tokenizer_of(file: str, end: int) -> LLTokenizer:
    return LLTokenizer(file, eos_token=end)


class Holding:
    """A reply to one prompt that is held to a choice."""

    def __init__(
        self, held: Held, models: Path, choice: Wanted, *, thinking: str, json_schema: str | None = None
    ) -> None:
        self.held, self.wanted, self.thinking, self.json_schema = held, choice, thinking, json_schema
        self.format = chat_format(held.name, models)
        self.args = TemplateArgs(TOOLS, dict(held.closed_by) if thinking == "closed" else None)
        self.prompt = [*self._prompt(), *self.format.vocabulary.encode(held.openings[thinking])]
        self.tag = self.format.grammar.of_calls(self.prompt, choice, json_schema=json_schema)
        file = str(models / held.name.replace(".", "-") / "tokenizer.json")
        marks = {self.format.vocabulary.decode([mark]): mark for mark in self.format.vocabulary.marks}
        tokenizer = tokenizer_of(file, self.format.stop_token_ids[0])
        self.matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark_of(self.tag, marks)), log_level=0)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def _prompt(self) -> list[int]:
        whole = self.format.prompt([{"role": "user", "content": "Where is <think> it?"}], self.args, []).ids.tolist()
        mark = self.format.vocabulary.encode(self.held.answer)[0]
        return whole[: len(whole) - whole[::-1].index(mark)]

    @property
    def excluded(self) -> list[int]:
        """The marks that free text never holds."""
        texts = {text for form in free_texts(json.loads(self.tag)["format"]) for text in form["excludes"]}
        return [mark for mark in self.format.vocabulary.marks if self.format.vocabulary.decode([mark]) in texts]

    def takes(self, text: str) -> bool:
        ids = self.format.vocabulary.encode(text)
        self.matcher.reset()
        taken = self.matcher.validate_tokens(ids)
        return taken == len(ids) and self.matcher.consume_tokens(ids) and self.matcher.is_accepting()

    def samples(self) -> list[Sample]:
        """Calls as the format writes them, and whether they are wanted; under a JSON schema, other replies too."""
        thought = self.held.thought[self.thinking]
        names = {function.name for function in self.wanted.functions}
        asked: list[list[tuple[str, dict[str, Any]]]] = [
            [FIND],
            [LOOK_UP],
            [NOBODY],
            [STOP],
            *([[LOOK_UP, FIND]] if self.held.parallel else []),
        ]
        return [
            Sample(
                self.format.vocabulary.encode(thought + self.held.calls(calls)),
                {name for name, _ in calls} <= names and (len(calls) == 1 or not self.wanted.single),
            )
            for calls in asked
        ] + [
            Sample(self.format.vocabulary.encode(thought + text), text == ANSWER)
            for text in (ANSWER, "Oslo.", "")
            if self.json_schema is not None
        ]

    def read(self, ids: list[int]) -> Message:
        return self.format.reader(self.prompt, self.args, seed=b"a").read([*ids, self.format.stop_token_ids[0]]).message

    def drawn(self, seed: int) -> list[int]:
        ids = example_of_tag(self.tag, self.format.vocabulary.encode, random.Random(seed))
        self.matcher.reset()
        assert self.matcher.validate_tokens(ids) == len(ids), self.format.vocabulary.decode(ids)
        assert self.matcher.consume_tokens(ids) and self.matcher.is_accepting()
        return ids


def called(said: Message) -> list[str]:
    """The names of calls, all of which have arguments of the types declared."""
    functions = [call["function"] for call in said.get("tool_calls", ())]
    for function in functions:
        assert suits(function["name"], json.loads(function["arguments"])), function
    return [function["name"] for function in functions]


def suits(name: str, arguments: dict[str, Any]) -> bool:
    declared = PARAMETERS[name]
    return set(declared.get("required", ())) <= set(arguments) <= set(declared["properties"]) and all(
        VALUES[key](value) for key, value in arguments.items()
    )


VALUES: dict[str, Callable[[Any], bool]] = {
    "q": lambda value: isinstance(value, str),
    "n": lambda value: type(value) in (int, float) and value == int(value),
    "how deep": lambda value: isinstance(value, bool),
    "mode": lambda value: value in ("all", "1"),
    "kind": lambda value: value == "2",
    "sort": lambda value: value == "3",
    "unit": lambda value: isinstance(value, str),
    "who": lambda value: value is None or isinstance(value, str),
    "tags": lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
}


THINKING = ("free", "open", "closed")


@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("names", [ALL, ("look_up",), ("find", "stop")])
def test_what_is_drawn_from_a_required_choice_is_read_as_its_calls(
    held: Held, models: Path, thinking: str, single: bool, names: tuple[str, ...]
) -> None:
    if thinking not in held.openings:
        return
    holding = Holding(held, models, wanted(names, single=single), thinking=thinking)
    for seed in range(20):
        said = holding.read(holding.drawn(seed))
        assert 1 <= len(called(said)) <= (1 if single else 3) and set(called(said)) <= set(names)
        assert not said["content"]
        assert thinking != "closed" or not said.get("reasoning_content")


@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize(("names", "single"), [(ALL, False), (ALL, True), (("look_up",), False), ((), False)])
def test_what_is_drawn_from_a_free_choice_is_text_or_its_calls(
    held: Held, models: Path, thinking: str, names: tuple[str, ...], single: bool
) -> None:
    if thinking not in held.openings:
        return
    holding = Holding(held, models, wanted(names, required=False, single=single), thinking=thinking)
    counts = set()
    for seed in range(20):
        said = holding.read(holding.drawn(seed))
        assert set(called(said)) <= set(names) and (len(called(said)) <= 1 or not single)
        # GLM's parser takes what comes before the first mark for reasoning.
        assert said["content"] or said.get("reasoning_content") or (called(said) and not held.beside)
        counts.add(bool(called(said)))
    assert counts == ({False, True} if names else {False})


@pytest.mark.parametrize("thinking", THINKING)
def test_the_formats_own_way_of_writing_is_allowed_and_what_was_not_wanted_is_not(
    held: Held, models: Path, thinking: str
) -> None:
    if thinking not in held.openings:
        return
    thought = held.thought[thinking]
    one, two = held.calls([FIND]), held.calls([LOOK_UP, FIND])
    required = Holding(held, models, wanted(), thinking=thinking)
    assert required.takes(thought + one) and required.takes(thought + held.calls([STOP]))
    assert required.takes(thought + held.calls([NOBODY]))
    assert required.takes(thought + two) or not held.parallel
    assert not required.takes(thought) and not required.takes(thought + "Nothing found.")
    assert not required.takes(thought + held.calls([("other", {})]))
    named = Holding(held, models, wanted(["find"], single=True), thinking=thinking)
    assert named.takes(thought + one) and not named.takes(thought + two)
    assert not named.takes(thought + held.calls([LOOK_UP]))
    free = Holding(held, models, wanted(["find"], required=False), thinking=thinking)
    assert free.takes(thought + "Nothing found.")
    if held.beside:
        said = thought + "Let me look." + held.gap
        assert free.takes(said + one) and not free.takes(said + two)  # one of them is look_up
    assert not free.takes(thought + held.calls([LOOK_UP]))


@pytest.mark.parametrize("name", [*HELD, *SAME_AS])
def test_a_reply_under_a_json_schema_is_json_or_calls(name: str, models: Path) -> None:
    held = replace(HELD[SAME_AS.get(name, name)], name=name)
    thinking, thought = next(iter(held.thought.items()))
    holding = Holding(held, models, wanted(["find"], required=False), thinking=thinking, json_schema=SCHEMA)
    encode, calls = holding.format.vocabulary.encode, held.calls([FIND])
    assert holding.takes(thought + calls) and holding.takes(thought + ANSWER)
    assert holding.takes(thought + held.calls([FIND, FIND])) == held.parallel
    call, answer = (holding.read(encode(thought + text)) for text in (calls, ANSWER))
    assert called(call) == ["find"] and not call["content"]
    assert called(answer) == [] and answer["content"] == ANSWER
    for said in (call, answer):
        assert (said.get("reasoning_content") or "").strip() == ("Hm." if thought else "")
    others = ("", "Oslo", "Let me look." + held.gap + calls, held.calls([STOP]), ANSWER + held.gap + calls)
    assert not any(holding.takes(thought + other) for other in (*others, calls + ANSWER))


@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("names", [ALL, ()])
def test_what_is_drawn_under_a_json_schema_is_read_as_json_or_calls(
    held: Held, models: Path, thinking: str, names: tuple[str, ...]
) -> None:
    if thinking not in held.openings:
        return
    holding = Holding(held, models, wanted(names, required=False), thinking=thinking, json_schema=SCHEMA)
    counts = set()
    for seed in range(20):
        said = holding.read(holding.drawn(seed))
        assert set(called(said)) <= set(names)
        assert bool(called(said)) != bool(said["content"])
        assert not said["content"] or isinstance(json.loads(said["content"])["city"], str)
        counts.add(bool(called(said)))
    assert counts == ({False, True} if names else {False})


def test_reasoning_can_be_left_out_where_the_prompt_leaves_it_to_the_model(held: Held, models: Path) -> None:
    if "free" in held.openings:
        holding = Holding(held, models, wanted(), thinking="free")
        assert holding.takes(held.lead + held.calls([FIND]))


def test_reasoning_before_the_results_of_tools_says_nothing_of_the_answer(models: Path) -> None:
    """DeepSeek's prompt goes on behind them without the mark of an answer."""
    holding = Holding(HELD["deepseek-r1"], models, wanted(), thinking="open")
    forms = [
        json.loads(holding.format.grammar.of_calls(holding.format.vocabulary.encode(f"\n</think>{end}"), wanted()))
        for end in ("", "<\uff5ctool\u2581outputs\u2581end\uff5c>", "<\uff5ctool\u2581outputs\u2581end\uff5c><think>\n")
    ]
    assert [len(free_texts(form)) for form in forms] == [0, 1, 1]


def test_reasoning_that_a_prompt_opens_must_end_before_a_call(held: Held, models: Path) -> None:
    if "open" in held.openings:
        holding = Holding(held, models, wanted(), thinking="open")
        assert not holding.takes(held.calls([FIND])) and not holding.takes("I think." + held.calls([FIND]))


def test_a_mark_written_out_in_letters_is_no_call(held: Held, models: Path) -> None:
    thinking = list(held.openings)[-1]
    holding = Holding(held, models, wanted(), thinking=thinking)
    encode = holding.format.vocabulary.encode
    for mark in held.marks:
        before = held.thought[thinking] + held.calls([FIND]).partition(mark)[0]
        ids = [*encode(before), *(token for letter in mark for token in encode(letter))]
        assert holding.matcher.reset() is not None and holding.matcher.validate_tokens(ids) < len(ids)


def test_all_grammars_of_a_model_name_the_same_tokens_in_one_order(held: Held, models: Path) -> None:
    """xgrammar 0.2.7 knows a token by its place among those of its grammar, and so in what it keeps for others."""
    orders = set()
    for thinking in held.openings:
        for names in (ALL, ["stop"]):
            for required, schema in ((True, None), (False, None), (False, SCHEMA)):
                choice = wanted(names, required=required)
                holding = Holding(held, models, choice, thinking=thinking, json_schema=schema)
                orders.add(tuple(dict.fromkeys(tokens_of(json.loads(holding.tag)["format"]))))
    assert len(orders) == 1


def free_texts(form: Any) -> list[dict[str, Any]]:
    if isinstance(form, list):
        return [each for part in form for each in free_texts(part)]
    if not isinstance(form, dict):
        return []
    return [form] if form.get("type") == "any_text" else free_texts(list(form.values()))


def tokens_of(form: Any) -> list[int]:
    if isinstance(form, list):
        return [token for part in form for token in tokens_of(part)]
    if not isinstance(form, dict):
        return []
    assert form.get("type") not in ("any_tokens", "exclude_token", "token_triggered_tags", "token_dispatch")
    return [form["token"]] if form.get("type") == "token" else tokens_of(list(form.values()))


@pytest.mark.parametrize("name", SAME_AS)
def test_formats_of_a_family_are_held_alike(name: str, models: Path) -> None:
    held = replace(HELD[SAME_AS[name]], name=name)
    thinking, thought = next(iter(held.thought.items()))
    holding = Holding(held, models, wanted(), thinking=thinking)
    for sample in holding.samples():
        assert holding.takes(holding.format.vocabulary.decode(sample.ids)) == sample.allowed
    ids = holding.format.vocabulary.encode(thought + held.calls([LOOK_UP]))
    assert called(holding.read(ids)) == ["look_up"]


def test_a_format_whose_calls_cannot_be_held_says_so(models: Path) -> None:
    assert not chat_format("gemma4", models).grammar.holds_calls
