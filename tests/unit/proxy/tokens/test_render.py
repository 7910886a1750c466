"""Prompts extend their parents token by token (promise 3), and replies become messages, for several chat formats."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, chat_format, shipped, write_model

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.model_files import ModelUnreadable
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Ask, Candidate, ChatFormat, Prompt
from rolloutfleet_proxy.tokens.vocabulary import unpacked

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Finds things.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name in ("find", "look_up")
]
WRITERS = [name for name, family in FAMILIES.items() if family.reply]
DROPS_REASONING = {"deepseek-r1", "minimax-m2", "gpt-oss"}
"""Formats whose prompt always opens reasoning, which a full render later drops."""
CUTS = {"reasoning": "of this", "content": "answer", "tool call": "find", "nothing yet": None}
"""What a reply ends in, and the words in whose midst it is cut."""


@dataclass
class Turn:
    prompt: list[int]
    output: list[int]
    length: int

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.output]


@dataclass
class Session:
    """An agent that appends, and a proxy that remembers."""

    model: ChatFormat
    kwargs: dict[str, Any] | None = None
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    renders: list[str] = field(default_factory=list)
    """Renders of the last prompt: `whole` or `extension`."""

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(turn.length, lambda turn=turn: (turn.prompt, turn.output))  # type: ignore[misc]
            for turn in reversed(self.turns)
        ]

    def ask(self, *new: Message) -> Prompt:
        self.messages += new
        self.renders.clear()
        args = TemplateArgs(TOOLS, self.kwargs)
        return self.model.prompt(self.messages, args, self.candidates(), render=self._rendered)

    def _rendered(self, ask: Ask) -> array[int] | None:
        self.renders.append("whole" if ask.turn is None else "extension")
        return self.model.rendered(ask)

    def answer(self, prompt: Prompt, output: Sequence[int], *, keep_reasoning: bool = True) -> Message:
        number = len(self.turns).to_bytes(4, "big")
        message = self.model.reader(prompt.ids, TemplateArgs(TOOLS, self.kwargs), seed=number).read(output).message
        self.messages.append({k: v for k, v in message.items() if keep_reasoning or k != "reasoning_content"})
        self.turns.append(Turn(prompt.ids.tolist(), list(output), len(self.messages)))
        return message


def split(model: ChatFormat, text: str, rng: random.Random) -> list[int]:
    """Tokens of a text, cut elsewhere than the tokenizer would; marks stay whole."""
    pattern = model.vocabulary.added_pattern
    ids: list[int] = []
    for piece in pattern.split(text):
        if model.vocabulary.convert_tokens_to_ids(piece) in model.vocabulary.marks:
            ids += model.vocabulary.encode(piece, add_special_tokens=False)
            continue
        cuts = sorted({0, len(piece), *(rng.randint(0, len(piece)) for _ in range(4))})
        for start, end in pairwise(cuts):
            ids += model.vocabulary.encode(piece[start:end], add_special_tokens=False)
    return ids


def results(message: Message) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {index}"}
        for index, call in enumerate(message.get("tool_calls") or ())
    ]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


CALLS: list[tuple[str, dict[str, Any]]] = [("find", {"q": "x", "n": 3}), ("look_up", {"q": "17"})]


@pytest.mark.parametrize("keep_reasoning", [True, False])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WRITERS)
def test_a_follow_up_begins_with_its_parents_tokens(models: Path, name: str, seed: int, keep_reasoning: bool) -> None:
    model, family = chat_format(name, models), FAMILIES[name]
    assert family.reply is not None
    rng = random.Random(seed)
    session = Session(model, messages=[{"role": "system", "content": "Be brief."}])
    news: list[Message] = [user("Hello?")]
    for turn in range(8):
        prompt = session.ask(*news)
        if session.turns:
            assert (prompt.parent, session.renders) == (0, ["extension"])
            assert prompt.checked == 1
            assert prompt.ids[: len(session.turns[-1].ids)].tolist() == session.turns[-1].ids
            assert len(prompt.ids) > len(session.turns[-1].ids)
        calls = (CALLS if family.parallel else CALLS[:1])[: rng.randint(0, 2)]
        output = split(model, family.reply(f"hm {turn}", f"so {turn}", calls), rng)
        message = session.answer(prompt, output, keep_reasoning=keep_reasoning)
        assert len(message.get("tool_calls") or ()) == len(calls)
        news = results(message) or [user(f"and {turn}?")]
        if rng.random() < 0.3:
            news.append(user("Quick!"))


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in DROPS_REASONING])
def test_a_bridge_writes_what_a_full_render_writes(models: Path, name: str) -> None:
    """Where there was no reasoning to keep, extending a turn gives the text that rendering anew gives."""
    model, family = chat_format(name, models), FAMILIES[name]
    assert family.reply is not None
    kwargs = {"enable_thinking": False} if name in ("qwen3", "qwen3.5", "glm-4.5") else None
    session = Session(model, kwargs, messages=[{"role": "system", "content": "Be brief."}])
    plain = {"qwen3.5": "fine<|im_end|>", "glm-4.5": "\nfine<|user|>"}.get(name) or family.reply("", "fine", [])
    prompt = session.ask(user("Hello?"))
    session.answer(prompt, model.vocabulary.encode(plain, add_special_tokens=False))
    extended = session.ask(user("More?"))
    anew = model.prompt(session.messages, TemplateArgs(TOOLS, kwargs), [])
    assert session.renders == ["extension"]
    assert model.vocabulary.decode(extended.ids) == model.vocabulary.decode(anew.ids)


def whole_reply(name: str) -> str:
    reply = FAMILIES[name].reply
    assert reply is not None
    return reply("because of this", "the answer is", CALLS[:1])


def cuts() -> list[tuple[str, str]]:
    """(format, where its reply is cut): a format without reasoning or tool calls can't be cut there."""
    return [
        (name, cut) for name in WRITERS for cut, words in CUTS.items() if words is None or words in whole_reply(name)
    ]


@pytest.mark.parametrize(("name", "cut"), cuts())
def test_a_truncated_parent_is_closed(models: Path, name: str, cut: str) -> None:
    model, whole, marker = chat_format(name, models), whole_reply(name), CUTS[cut]
    text = "" if marker is None else whole[: whole.index(marker) + 3]
    session = Session(model)
    first = session.ask(user("Hello?"))
    output = model.vocabulary.encode(text, add_special_tokens=False)
    message = session.answer(first, output)
    if cut == "tool call":
        assert "tool_calls" not in message
    second = session.ask(user("Go on."))
    assert (second.parent, session.renders) == (0, ["extension"])
    assert second.ids[: len(first.ids) + len(output)].tolist() == [*first.ids, *output]
    # The close is made here, after the output: what is sampled stays exactly what was sampled.
    closing = second.ids[len(first.ids) + len(output) :]
    assert model.vocabulary.decode(closing).index("Go on.") > 0
    assert not set(closing).isdisjoint(model.stop_token_ids) or name == "gpt-oss"


@pytest.mark.parametrize("times", [1, 2000])
@pytest.mark.parametrize("name", WRITERS)
def test_a_stop_token_in_the_middle_of_the_output_is_kept(models: Path, name: str, times: int) -> None:
    """A caller may have stop tokens ignored."""
    model = chat_format(name, models)
    session = Session(model)
    first = session.ask(user("Hello?"))
    hello = model.vocabulary.encode("hello", add_special_tokens=False)
    output = [*hello, model.stop_token_ids[0], *hello * times]
    session.answer(first, output)
    second = session.ask(user("Go on."))
    assert (second.parent, session.renders) == (0, ["extension"])
    assert second.ids[: len(first.ids) + len(output)].tolist() == [*first.ids, *output]


@pytest.mark.parametrize("name", WRITERS)
def test_the_system_prompt_may_be_text_parts_and_content_null(models: Path, name: str) -> None:
    model = chat_format(name, models)
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}]
    call = {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    rest: list[Message] = [
        user("Hello?"),
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.find:0", "content": "found"},
    ]
    by_parts = model.prompt([*parts, *rest], TemplateArgs(TOOLS), []).ids
    by_text = model.prompt([{"role": "system", "content": "Be brief."}, *rest], TemplateArgs(TOOLS), []).ids
    assert by_parts == by_text
    assert "None" not in model.vocabulary.decode(by_text)


def test_a_developer_is_heard() -> None:
    model = shipped()
    told = model.prompt([{"role": "developer", "content": "Be brief."}, user("Hello?")], NO_ARGS, [])
    assert told.ids == model.prompt([{"role": "system", "content": "Be brief."}, user("Hello?")], NO_ARGS, []).ids


def test_an_unknown_role_is_refused_not_dropped() -> None:
    model = shipped()
    with pytest.raises(Unrenderable, match="'critic'"):
        model.prompt([user("Hello?"), {"role": "critic", "content": "Bad."}], NO_ARGS, [])


def test_what_the_format_has_no_form_for_is_refused(models: Path) -> None:
    model = chat_format("llama-3", models)
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    with pytest.raises(Unrenderable, match="one call"):
        model.prompt([user("Hello?"), {"role": "assistant", "content": "", "tool_calls": [call, call]}], NO_ARGS, [])


def test_template_arguments_change_the_prompt_and_are_checked() -> None:
    model = shipped()
    quiet = model.prompt([user("Hello?")], TemplateArgs(kwargs={"enable_thinking": False}), [])
    assert "<think>\n\n</think>" in model.vocabulary.decode(quiet.ids)
    assert "<think>" not in model.vocabulary.decode(model.prompt([user("Hello?")], NO_ARGS, []).ids)
    with pytest.raises(Unrenderable, match="no_such_thing"):
        model.prompt([user("Hello?")], TemplateArgs(kwargs={"no_such_thing": 1}), [])


class TestBranches:
    """Which candidate becomes the parent."""

    def test_a_message_of_the_agents_own_makes_a_full_render_which_must_match_by_tokens(self) -> None:
        model = shipped()
        session = Session(model)
        first = session.ask(user("Hello?"))
        session.answer(first, model.vocabulary.encode("Fine.<|im_end|>", add_special_tokens=False))
        own: list[Message] = [{"role": "assistant", "content": "I forgot:"}, user("More?")]
        prompt = session.ask(*own)
        assert (prompt.parent, prompt.checked, session.renders) == (0, 1, ["whole"])

    def test_the_same_text_in_other_tokens_is_a_branch(self) -> None:
        model = shipped()
        session = Session(model)
        first = session.ask(user("Hello?"))
        letters = [model.vocabulary.encode(letter, add_special_tokens=False)[0] for letter in "Fine."]
        end = model.vocabulary.encode("<|im_end|>", add_special_tokens=False)
        session.answer(first, [*letters, *end])
        assert session.messages[-1]["content"] == "Fine."
        prompt = session.ask({"role": "assistant", "content": "I forgot:"}, user("More?"))
        assert (prompt.parent, prompt.checked) == (None, 1)

    def test_a_shallower_turn_may_still_be_the_parent(self) -> None:
        model = shipped()
        session = Session(model)
        first = session.ask(user("Hello?"))
        session.answer(first, model.vocabulary.encode("Fine.<|im_end|>", add_special_tokens=False))
        second = session.ask(user("More?"))
        letters = [model.vocabulary.encode(letter, add_special_tokens=False)[0] for letter in "Good."]
        session.answer(second, [*letters, *model.vocabulary.encode("<|im_end|>", add_special_tokens=False)])
        prompt = session.ask({"role": "assistant", "content": "I forgot:"}, user("Even more?"))
        assert (prompt.parent, prompt.checked) == (1, 2)

    def test_without_candidates_there_is_nothing_to_check(self) -> None:
        prompt = shipped().prompt([user("Hello?")], NO_ARGS, [])
        assert (prompt.parent, prompt.checked) == (None, 0)

    def test_by_the_template_a_new_question_branches_where_reasoning_goes(self) -> None:
        model = load(model_path(), thinking_retention="template")
        session = Session(model)
        first = session.ask(user("Hello?"))
        text = "<think>\nhm\n</think>\n\nFine.<|im_end|>"
        session.answer(first, model.vocabulary.encode(text, add_special_tokens=False))
        prompt = session.ask(user("More?"))
        assert (prompt.parent, prompt.checked) == (None, 1)
        assert "hm" not in model.vocabulary.decode(prompt.ids)


class TestMessages:
    """What output ids become."""

    def parse(self, text: str, **kwargs: Any) -> Message:
        model = shipped()
        output = model.vocabulary.encode(text, add_special_tokens=False)
        return model.reader([], TemplateArgs(TOOLS), seed=b"turn").read(output, **kwargs).message

    def call(self, body: str) -> Message:
        return self.parse(f"So: <tool_call>\n{body}\n</tool_call><|im_end|>")

    def test_only_what_is_there(self) -> None:
        assert self.parse("Fine.<|im_end|>") == {"role": "assistant", "content": "Fine."}
        assert self.parse("<|im_end|>") == {"role": "assistant", "content": ""}

    def test_tool_calls_have_the_same_ids_again(self) -> None:
        body = '{"name": "find", "arguments": {"q": "x"}}'
        message = self.parse(f"<tool_call>{body}</tool_call><tool_call>{body}</tool_call><|im_end|>")
        assert message["content"] is None
        one, two = message["tool_calls"]
        assert one["function"] == {"name": "find", "arguments": '{"q": "x"}'}
        assert one["id"] != two["id"]
        assert message == self.parse(f"<tool_call>{body}</tool_call><tool_call>{body}</tool_call><|im_end|>")

    @pytest.mark.parametrize(
        "body",
        [
            "{not json",
            '{"arguments": {}}',
            '{"name": 3, "arguments": {}}',
            '{"name": "find", "arguments": [1]}',
            '{"name": "find", "arguments": {"n": NaN}}',
            '{"name": "find", "arguments": {"n": ' + "9" * 5000 + "}}",
            '{"name": "find", "arguments": ' + "[" * 2000 + "]" * 2000 + "}",
            '{"name": "no name", "arguments": {}}',
            '{"name": "\\ud800", "arguments": {}}',
        ],
    )
    def test_a_malformed_call_stays_as_text(self, body: str) -> None:
        message = self.call(body)
        assert "tool_calls" not in message
        assert message["content"] == f"So: <tool_call>\n{body}\n</tool_call>"

    def test_half_a_character_in_arguments_stays_escaped(self) -> None:
        [call] = self.call('{"name": "find", "arguments": {"q": "\\ud800"}}')["tool_calls"]
        assert call["function"]["arguments"].encode() == b'{"q": "\\ud800"}'

    def test_a_call_that_is_cut_stays_as_text(self) -> None:
        assert self.parse('Look: <tool_call>{"name"')["content"] == 'Look: <tool_call>{"name"'

    def test_a_stop_string_and_what_follows_is_left_out(self) -> None:
        assert self.parse("Fine.\nObservation: none", stop="\nObservation:")["content"] == "Fine."
        assert self.parse("Fine.", stop="absent")["content"] == "Fine."

    def test_bytes_that_are_no_text(self) -> None:
        model = shipped()
        [first, *_] = [i for i in range(300) if model.vocabulary.token_bytes(i) == b"\xf0"]
        assert model.reader([], NO_ARGS, seed=b"").read([first]).message["content"] == "\ufffd"
        assert model.vocabulary.token_bytes(10**9) == b""


def test_reasoning_after_tool_results_is_reasoning(models: Path) -> None:
    """DeepSeek R1 goes on without a role mark after tool results, and opens reasoning there."""
    model, family = chat_format("deepseek-r1", models), FAMILIES["deepseek-r1"]
    assert family.reply is not None
    session = Session(model)
    first = session.ask(user("Hello?"))
    output = model.vocabulary.encode(family.reply("hm", "", CALLS[:1]), add_special_tokens=False)
    second = session.ask(*results(session.answer(first, output)))
    assert model.vocabulary.decode(second.ids).endswith("<think>\n")
    output = model.vocabulary.encode(family.reply("I see", "Done.", []), add_special_tokens=False)
    message = session.answer(second, output)
    assert (message["content"], message["reasoning_content"]) == ("Done.", "I see")


class TestLoading:
    """Which renderer a model gets."""

    def test_by_model_type(self, tmp_path: Path) -> None:
        directory = write_model(
            tmp_path / "m", FAMILIES["qwen3"], config={"model_type": "qwen3_moe", "vocab_size": 9000}
        )
        model = load(directory)
        assert (model.name, model.context_length, model.vocabulary_size) == ("qwen3", 4096, 9000)

    def test_by_the_name_in_its_config(self, tmp_path: Path) -> None:
        config = {"_name_or_path": "meta-llama/Llama-3.2-1B-Instruct"}
        assert load(write_model(tmp_path / "m", FAMILIES["llama-3"], config=config)).name == "llama-3"

    @pytest.mark.parametrize(("thought", "name"), [("<think>\n", "default"), ("", "qwen3")])
    def test_its_own_template_decides_whether_replies_begin_in_a_thought(
        self, tmp_path: Path, thought: str, name: str
    ) -> None:
        config = {"_name_or_path": "Qwen/Qwen3-4B-Thinking-2507", "model_type": "qwen3"}
        directory = write_model(tmp_path / "m", FAMILIES["qwen3"], config=config)
        source = TEMPLATE.replace("assistant: ", f"assistant\n{thought}")
        (directory / "chat_template.jinja").write_text(source)
        model = load(directory)
        assert model.name == name
        text = model.vocabulary.decode(model.prompt([user("Hello?")], NO_ARGS, []).ids)
        assert text.endswith(f"<|im_start|>assistant\n{thought}")

    def test_its_own_template_decides_where_it_differs(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path / "m", FAMILIES["qwen3"], config={"model_type": "qwen3"})
        (directory / "chat_template.jinja").write_text(TEMPLATE)
        model = load(directory)
        assert model.name == "default"
        assert model.vocabulary.decode(model.prompt([user("Hello?")], NO_ARGS, []).ids) == (
            "<|im_start|>user: Hello?<|im_end|>\n<|im_start|>assistant: "
        )

    def test_by_the_name_of_the_model_that_is_served(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path / "m", FAMILIES["llama-3"])
        assert load(directory, model="meta-llama/Llama-3.2-1B-Instruct").name == "llama-3"
        with pytest.raises(ModelUnreadable, match="no chat format is known"):
            load(directory, model="somebody/else's")

    def test_its_own_template_is_more_than_the_name_of_the_model_that_is_served(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path / "m", FAMILIES["qwen3"])
        (directory / "chat_template.jinja").write_text(TEMPLATE)
        assert load(directory, model="Qwen/Qwen3-8B").name == "default"

    def test_named_wins(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path / "m", FAMILIES["qwen3"], config={"model_type": "qwen3"})
        (directory / "chat_template.jinja").write_text(TEMPLATE)
        assert load(directory, renderer="qwen3").name == "qwen3"

    @pytest.mark.parametrize(
        ("break_it", "said"),
        [
            (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer.json"),
            (lambda d: (d / "tokenizer.json").write_text("{}"), "tokenizer.json can't be read"),
            (lambda d: (d / "config.json").write_text("{"), "config.json can't be read"),
            (lambda d: (d / "config.json").write_text("{}"), "no chat format is known for model type None"),
            (lambda d: (d / "chat_template.jinja").write_text("{% if"), "chat template can't be read"),
        ],
    )
    def test_what_is_wrong_is_said(self, tmp_path: Path, break_it: Any, said: str) -> None:
        directory = write_model(tmp_path / "m", FAMILIES["qwen3"], config={"model_type": "qwen3"})
        break_it(directory)
        with pytest.raises(ModelUnreadable, match=said):
            load(directory)

    def test_a_renderer_of_another_family_is_refused(self) -> None:
        with pytest.raises(ModelUnreadable, match=r"glm-4\.5 doesn't fit"):
            load(model_path(), renderer="glm-4.5")
        with pytest.raises(ModelUnreadable, match="no-such-renderer"):
            load(model_path(), renderer="no-such-renderer")

    def test_a_hub_name_that_was_fetched_needs_no_network(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        cached = tmp_path / "models--Qwen--Qwen3-8B"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("c0ffee")
        write_model(cached / "snapshots" / "c0ffee", FAMILIES["qwen3"])
        assert load("Qwen/Qwen3-8B", download_to=tmp_path).name == "qwen3"

        with pytest.raises(ModelUnreadable, match="can't be fetched"):
            load("Qwen/Qwen3-14B", download_to=tmp_path)

    def test_neither_directory_nor_name(self, tmp_path: Path) -> None:
        with pytest.raises(ModelUnreadable, match="is not a directory"):
            load(tmp_path / "absent")


TEMPLATE = """
{%- for tool in tools or [] -%}{{ tool.function.name }}{{ "\\n" }}{%- endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}: {% generation %}{{ message.content }}{% endgeneration %}
{%- for call in message.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>{{ "\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant: {% endif -%}
"""


class TestTheModelsOwnTemplate:
    """The fallback where no renderer fits: everything rendered anew, and found again by its tokens."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> ChatFormat:
        directory = write_model(tmp_path / "m", FAMILIES["qwen3"], config={"model_type": "of its own"})
        (directory / "chat_template.jinja").write_text(TEMPLATE)
        return load(directory)

    def test_an_append_only_session_extends(self, model: ChatFormat) -> None:
        session = Session(model)
        prompt = session.ask({"role": "system", "content": "Be brief."}, user("Hello?"))
        body = json.dumps({"name": "find", "arguments": {"q": "x"}})
        for text in (" fine \n", "So.<tool_call>" + body + "</tool_call>", "done"):
            message = session.answer(prompt, model.vocabulary.encode(text + "<|im_end|>", add_special_tokens=False))
            prompt = session.ask(*(results(message) or [user("more?")]))
            assert prompt.parent == 0 and session.renders[:2] == ["extension", "whole"]

    def test_its_texts_are_encoded_once(self, model: ChatFormat) -> None:
        messages = [{"role": "system", "content": "Be brief. " * 500}, user("Hello?")]
        whole = model.prompt(messages, NO_ARGS, []).ids
        text = model.vocabulary.decode(whole)
        assert whole.tolist() == model.vocabulary.encode(text, add_special_tokens=False)
        model.prompt(messages, NO_ARGS, [])
        before = model.vocabulary.cache.nbytes
        assert before > 5000
        model.prompt([*messages[:1], user("Well?")], NO_ARGS, [])
        assert model.vocabulary.cache.nbytes - before < 1000

    def test_a_template_that_refuses(self, tmp_path: Path) -> None:
        directory = write_model(tmp_path / "m", FAMILIES["qwen3"])
        (directory / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].role) }}")
        with pytest.raises(Unrenderable, match="no user"):
            load(directory).prompt([user("Hello?")], NO_ARGS, [])


def test_the_cache_of_encoded_texts_is_bounded() -> None:
    model = load(model_path(), cache_bytes=100_000)
    for number in range(200):
        for _ in range(2):
            model.prompt([user(f"{number} " * 400)], NO_ARGS, [])
        assert model.vocabulary.cache.nbytes <= 100_000
    assert model.vocabulary.cache.nbytes > 50_000


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_bridge_sees_no_difference_in_a_packed_reply(models: Path, name: str) -> None:
    """Replies are packed before a renderer goes through them: it must say the same of each token."""
    model, family = chat_format(name, models), FAMILIES[name]
    messages: list[Message] = [user("Hello?")]
    tail = model.full(messages, TemplateArgs(TOOLS)).tolist()
    texts = (
        [family.reply(" I think.", " So it is.", []), family.reply("", "c", CALLS[:1])] if family.reply else ["Yes."]
    )
    for text in [*texts, *(text[: len(text) // 2] for text in texts)]:
        output = model.vocabulary.encode(text, add_special_tokens=False)
        new = [user("And then?" + " More of it." * 20)]
        whole = model._renderer.bridge_to_next_turn(tail, output, new, tools=TOOLS)
        prior = tail + output
        expected = None
        if whole is not None and whole.token_ids[: len(prior)] == prior:
            expected = unpacked(whole.token_ids[len(prior) :])
        turn = array("i", tail), array("i", output)
        assert model.rendered(Ask(new, TemplateArgs(TOOLS), turn)) == expected
