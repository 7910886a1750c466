"""What the model says: an agent's loop can act on it, and it ends."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers.qwen3 import Qwen3Renderer

from rolloutfleet_engine.chat import prompt_text
from rolloutfleet_engine.model import Model
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.requests import SamplingParams
from rolloutfleet_engine.scene import ChatReader, Scene, Thinking, Tool
from rolloutfleet_engine.script import LoopOptions, speak, value_for
from rolloutfleet_engine.writer import Writer

TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books a room.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Lima"]},
                "guests": {"type": "integer", "minimum": 1, "maximum": 4},
                "budget": {"type": ["number", "null"], "minimum": 10},
                "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
                "options": {"$ref": "#/$defs/options"},
            },
            "required": ["city", "guests", "tags", "options"],
            "$defs": {"options": {"type": "object", "properties": {"late": {"type": "boolean"}}, "required": ["late"]}},
        },
    },
}
QUESTION = {"role": "user", "content": "Book a room in Oslo for two."}


class ThinTokenizer:
    name_or_path = "Qwen/Qwen3-8B"
    unk_token_id = None

    def __init__(self, model: Model) -> None:
        self.encode = lambda text, add_special_tokens=False: model.encode(text)
        self.decode = lambda ids, skip_special_tokens=False: model.decode(ids, skip_special_tokens=skip_special_tokens)
        self.convert_tokens_to_ids = model.token_id
        self.eos_token_id = model.token_id("<|im_end|>")


@pytest.fixture(scope="module")
def renderer(model: Model) -> Qwen3Renderer:
    return Qwen3Renderer(ThinTokenizer(model))


@pytest.fixture(scope="module")
def writer(model: Model) -> Writer:
    return Writer(model, EngineOptions(seed=1, noncanonical=0.3))


def fits(arguments: dict[str, Any]) -> bool:
    return (
        arguments["city"] in ("Oslo", "Lima")
        and arguments["guests"] in range(1, 5)
        and isinstance(arguments["tags"], list)
        and isinstance(arguments["options"]["late"], bool)
        and arguments.get("budget", 10) >= 10
    )


def test_an_agents_loop_ends_with_an_answer(model: Model, renderer: Qwen3Renderer, writer: Writer) -> None:
    """Whatever the seed: tool calls that fit, results, and a final text within a few rounds."""
    seen = {"calls": 0, "parallel": 0, "reasoning": 0, "content beside calls": 0}
    for seed in range(40):
        messages: list[dict[str, Any]] = [QUESTION]
        for _ in range(6):
            prompt = renderer.render(messages, tools=[TOOL], add_generation_prompt=True).token_ids
            draft = writer.draft(prompt, sampling=SamplingParams(sampling_seed=seed))
            said = renderer.parse_response([*draft.ids, model.token_id("<|im_end|>")])
            seen["reasoning"] += bool(said.reasoning_content)
            calls = said.tool_calls or []
            if not calls:
                assert said.content
                break
            seen["calls"] += 1
            seen["parallel"] += len(calls) > 1
            seen["content beside calls"] += bool(said.content)
            assert all(call.name == "book" and fits(call.arguments) for call in calls)
            made = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
            messages.append({"role": "assistant", "content": said.content, "tool_calls": made})
            messages.extend({"role": "tool", "content": json.dumps({"booked": True})} for _ in calls)
        else:
            raise AssertionError(f"no answer for seed {seed}")
    assert all(seen.values()), seen


def test_the_reader_sees_how_far_the_loop_has_come(model: Model, renderer: Qwen3Renderer) -> None:
    call = {"type": "function", "function": {"name": "book", "arguments": {"city": "Oslo"}}}
    messages = [
        QUESTION,
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Two more, please."},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "first room"},
        {"role": "tool", "content": "second room"},
    ]
    prompt = renderer.render(messages, tools=[TOOL], add_generation_prompt=True).token_ids
    reader = ChatReader(model)
    opening, thinking = next(iter(reader.openings(prompt)))
    scene = reader.read(prompt[:opening], thinking=thinking)
    assert opening == len(prompt)
    assert [tool.name for tool in scene.tools] == ["book"]
    assert (scene.rounds, scene.results, scene.excerpt) == (1, 2, "second room")


def test_a_prompt_that_rules_thinking_out_gets_none(model: Model, writer: Writer) -> None:
    prompt = model.encode(prompt_text([QUESTION], None) + "<think>\n\n</think>\n\n")
    for seed in range(20):
        assert "think>" not in model.decode(writer.draft(prompt, sampling=SamplingParams(sampling_seed=seed)).ids)


def test_a_prompt_that_is_no_chat_gets_an_answer(model: Model, writer: Writer) -> None:
    assert writer.draft(model.encode("once upon a time"), sampling=SamplingParams()).ids


@given(cut=st.floats(0, 1), seed=st.integers(0, 50), bias=st.sampled_from([None, -100.0]))
def test_a_part_sent_again_is_continued(
    cut: float, seed: int, bias: float | None, model: Model, writer: Writer
) -> None:
    """prompt + part → the rest, with the same log-probabilities: a cut generation ends as an uncut one."""
    prompt = model.encode(prompt_text([QUESTION], [TOOL]))
    plain = writer.draft(prompt, sampling=SamplingParams(sampling_seed=seed))
    away = None if bias is None else {str(plain.ids[len(plain.ids) // 2]): bias}
    sampling = SamplingParams(sampling_seed=seed, logit_bias=away)
    whole = writer.draft(prompt, sampling=sampling)
    assert (whole.ids == plain.ids) == (bias is None)
    place = int(cut * len(whole.ids))
    rest = writer.draft([*prompt, *whole.ids[:place]], sampling=sampling)
    assert rest.ids == whole.ids[place:]
    logprobs = writer.logprobs(whole, version="1", count=len(whole.ids))
    assert writer.logprobs(rest, version="1", count=len(rest.ids)) == logprobs[place:]
    assert all(-1e3 < value <= 0 for value in logprobs)


@given(seed=st.integers(), thinking=st.sampled_from(Thinking), rounds=st.integers(0, 4))
def test_every_scene_can_be_spoken_to(seed: int, thinking: Thinking, rounds: int) -> None:
    scene = Scene(tools=(Tool(name="book", parameters={}),), rounds=rounds, thinking=thinking)
    text = speak(scene, random.Random(seed), LoopOptions())
    assert text.count("<tool_call>") == text.count("</tool_call>")
    assert text.count("</think>") == text.count("<think>") + (thinking is Thinking.OPEN)
    assert rounds < 3 or "<tool_call>" not in text


schemas = st.recursive(
    st.sampled_from(
        [{}, {"type": "string"}, {"type": "integer"}, {"enum": [1, 2]}, {"$ref": "#"}, {"type": "null"}, True]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda value: {"type": "object", "properties": {"a": value}, "required": ["a", "b"]}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner)),
    ),
)


@given(schema=schemas, seed=st.integers())
def test_any_schema_gets_a_value_that_is_json(schema: Any, seed: int) -> None:
    root = schema if isinstance(schema, dict) else {}
    json.dumps(value_for(schema, random.Random(seed), root=root))


def test_messages_that_begin_with_an_empty_line_are_read_all_the_same(model: Model, renderer: Qwen3Renderer) -> None:
    messages = [
        {"role": "system", "content": "\nBe brief."},
        {"role": "user", "content": "\nTwo rooms, please."},
        {"role": "assistant", "content": "\nWhich?"},
        {"role": "user", "content": "Any."},
    ]
    prompt = renderer.render(messages, tools=[TOOL], add_generation_prompt=True).token_ids
    reader = ChatReader(model)
    opening, thinking = next(iter(reader.openings(prompt)))
    scene = reader.read(prompt[:opening], thinking=thinking)
    assert [tool.name for tool in scene.tools] == ["book"]
    assert (scene.rounds, scene.answers) == (0, 1)


SUBMIT = Tool(name="submit", parameters={"type": "object", "properties": {"answer": {"type": "string"}}})
BOOK = Tool(name="book", parameters={})


@pytest.mark.parametrize("seed", range(20))
def test_a_loop_has_as_many_rounds_as_it_is_told(seed: int) -> None:
    loop, rng = LoopOptions(rounds=3), random.Random(seed)
    for answers in range(3):
        assert speak(Scene(tools=(BOOK,), answers=answers), rng, loop).count("<tool_call>") == 1
    assert "<tool_call>" not in speak(Scene(tools=(BOOK,), answers=3), rng, loop)
    assert "<tool_call>" not in speak(Scene(answers=0), rng, loop), "nothing to call"


@pytest.mark.parametrize("loop", [LoopOptions(), LoopOptions(rounds=2)])
@pytest.mark.parametrize("seed", range(20))
def test_a_tool_that_ends_the_loop_is_called_last_and_never_before(seed: int, loop: LoopOptions) -> None:
    rng = random.Random(seed)
    assert '"submit"' not in speak(Scene(tools=(BOOK, SUBMIT), answers=0), rng, LoopOptions(rounds=2))
    assert '"name": "submit"' in speak(Scene(tools=(BOOK, SUBMIT), answers=3, rounds=3), rng, loop)


def test_the_last_call_can_be_given() -> None:
    call = {"name": "book", "arguments": {"command": "echo done"}}
    text = speak(Scene(tools=(BOOK,), answers=1), random.Random(1), LoopOptions(rounds=1, last_call=call))
    assert json.dumps(call) in text
