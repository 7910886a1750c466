"""What replies say: joined deltas are the message, and no part of a reply is lost, in every chat format and however
tokens and chunks fall."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.chat_formats import load
from tests.unit.proxy.dialects.conversations import parts_of as in_order
from tests.unit.proxy.tokens.models.families import (
    FAMILIES,
    VARIANTS,
    Family,
    chat_format,
    shipped,
    without_byte_decoder,
    write_model,
)

from rolloutfleet_proxy.domain.events import Delta, Text, ToolCall
from rolloutfleet_proxy.domain.messages import NO_ARGS, TemplateArgs
from rolloutfleet_proxy.tokens.call_reading import Piece
from rolloutfleet_proxy.tokens.call_syntax import Syntax
from rolloutfleet_proxy.tokens.reading import GrowingReply, Reader, Reply, StreamDiverged
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat
from rolloutfleet_proxy.tokens.reply_text import ReplyText
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
]
TOLD = TemplateArgs(TOOLS)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("find", {"q": "true", "n": 3}),
    ("look_up", {"q": 'a "b"\n<c>', "deep": {"x": [1, None]}}),
]
PROMPTS: dict[str, list[dict[str, Any]]] = {
    "first": [{"role": "user", "content": "Hello?"}],
    "after a tool": [
        {"role": "user", "content": "Hello?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ],
}


@lru_cache(maxsize=64)
def prompt_of(model: ChatFormat, name: str) -> tuple[int, ...]:
    return tuple(model.prompt(PROMPTS[name], TOLD, []).ids)


def joined(deltas: Iterable[Delta]) -> dict[str, Any]:
    """What a client makes of the deltas."""
    content, reasoning = "", ""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if isinstance(delta, ToolCall):
            assert delta.index == len(calls)
            function = {"name": delta.name, "arguments": delta.arguments}
            calls.append({"id": delta.id, "type": "function", "function": function})
        elif isinstance(delta, Text):
            content += delta.text
        else:
            reasoning += delta.text
    return {"content": content, "reasoning": reasoning, "tool_calls": calls}


def flat(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "tool_calls": message.get("tool_calls", []),
    }


def chunked(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(list(ids[start : start + size]))
        start += size
    return [*chunks, list(ids[start:])]


def streamed(
    model: ChatFormat, prompt: Sequence[int], chunks: Sequence[Sequence[int]], args: TemplateArgs = TOLD
) -> tuple[list[list[Delta]], dict[str, Any]]:
    """The deltas of each chunk and of the end, and the message."""
    parser = GrowingReply(model.reader(prompt, args, seed=b"turn"))
    sent = [parser.feed(chunk) for chunk in chunks]
    output = [token_id for chunk in chunks for token_id in chunk]
    reply = model.reader(prompt, args, seed=b"turn").read(output)
    return [*sent, parser.finish(reply)], reply.message


def said(content: str) -> Reply:
    return Reply({"role": "assistant", "content": content}, None)


def flatten(sent: Iterable[Iterable[Delta]]) -> list[Delta]:
    return [delta for deltas in sent for delta in deltas]


NAMES = sorted(FAMILIES | VARIANTS)
WRITERS = [name for name, family in FAMILIES.items() if family.reply]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_reply_with_everything(models: Path, name: str, prompt: str) -> None:
    model, family = chat_format(name, models), FAMILIES[name]
    assert family.reply is not None
    calls = CALLS if family.parallel else []
    text = family.reply("Let me\n\nthink: 1 < 2.", "I'll look it up, naïvely. 🙂", calls)
    output = model.vocabulary.encode(text, add_special_tokens=False)
    sent, message = streamed(model, prompt_of(model, prompt), [[token_id] for token_id in output])

    assert flat(message)["content"] == "I'll look it up, naïvely. 🙂"
    assert flat(message)["reasoning"] == ("Let me\n\nthink: 1 < 2." if family.reasons else "")
    assert [call["function"]["name"] for call in flat(message)["tool_calls"]] == [name for name, _ in calls]
    assert joined(flatten(sent)) == flat(message)
    # All but what the last tokens leave open has left before them; the first before half of the reply was there.
    assert any(sent[: len(output) // 2])
    before_end = joined(flatten(sent[:-2]))
    assert before_end["content"] == flat(message)["content"]
    assert before_end["tool_calls"][:1] == flat(message)["tool_calls"][:1]


@cache
def ids_of_bytes(vocabulary: Vocabulary) -> dict[bytes, int]:
    return {vocabulary.token_bytes(token_id): token_id for token_id in range(256)}


def byte_ids(vocabulary: Vocabulary, text: str) -> list[int]:
    """One token a byte: as far from the usual split as can be."""
    by_bytes = ids_of_bytes(vocabulary)
    return [by_bytes[bytes([byte])] for byte in text.encode()]


WORDS = (
    *("a", " b", "\n", "\n\n", "  ", "é", "🙂", "<", "</", "<think", ">", "{", "}", '"'),
    *("find", "Hello there. ", "tool"),
)


def drawn(draw: random.Random, model: ChatFormat, family: Family) -> list[int]:
    """Random text and marks, cut into tokens in random ways; now and then cut off, shuffled, or with any ids behind."""
    vocabulary = model.vocabulary
    marks = [*family.special, *family.plain, *family.marks]
    ids: list[int] = []
    for _ in range(draw.randint(0, 14)):
        for part in split_at_marks(drawn_piece(draw, family, marks), marks):
            if part in marks and vocabulary.convert_tokens_to_ids(part) is not None and draw.randint(0, 9):
                ids.append(vocabulary.convert_tokens_to_ids(part))
            elif draw.random() < 0.5:
                ids += byte_ids(vocabulary, part)
            else:
                cuts = sorted({0, len(part), *(draw.randint(0, len(part)) for _ in range(draw.randint(0, 3)))})
                for start, end in pairwise(cuts):
                    ids += vocabulary.encode(part[start:end], add_special_tokens=False)
    match draw.randrange(9):
        case 0:
            draw.shuffle(ids)
        case 1:
            del ids[draw.randint(0, len(ids)) :]
        case 2:
            ids += draw.choices(range(vocabulary.size), k=draw.randint(1, 9))
    if draw.random() < 0.5:
        ids.append(draw.choice(model.stop_token_ids))
    return ids


def drawn_piece(draw: random.Random, family: Family, marks: Sequence[str]) -> str:
    kind = draw.randrange(5 if family.reply else 4)
    if kind < 3:
        return draw.choice(WORDS)
    if kind == 3 or family.reply is None:
        return draw.choice(marks)
    return family.reply(draw.choice(WORDS), draw.choice(WORDS), draw.choices(CALLS, k=draw.randint(0, 3)))


def split_at_marks(text: str, marks: Sequence[str]) -> list[str]:
    for mark in sorted(marks, key=len, reverse=True):
        if mark and mark in text and text != mark:
            before, _, after = text.partition(mark)
            return [*split_at_marks(before, marks), mark, *split_at_marks(after, marks)]
    return [text] if text else []


@pytest.mark.parametrize("name", NAMES)
def test_any_tokens_at_all(models: Path, name: str) -> None:
    model, family = chat_format(name, models), (FAMILIES | VARIANTS)[name]

    @settings(deadline=None)
    @given(st.integers(0, 2**63))
    @example(2000)  # GLM-4.5's content, reasoning and content are all held until the end
    def check(seed: int) -> None:
        draw = random.Random(seed)
        output = drawn(draw, model, family)
        sizes = [draw.randint(0, 5) for _ in range(draw.randint(0, 12))]
        prompt = draw.choice(list(PROMPTS))
        ids, args = prompt_of(model, prompt), draw.choice([TOLD, NO_ARGS])
        sent, message = streamed(model, ids, chunked(output, sizes), args)
        assert joined(flatten(sent)) == flat(message)
        assert model.reader(ids, args, seed=b"turn").read(output).parts == in_order(flatten(sent))

    check()


@pytest.mark.parametrize(("name", "line"), [("glm-4.5", "\n"), ("glm-5", "")])
def test_a_model_may_think_again_behind_its_text(models: Path, name: str, line: str) -> None:
    model = chat_format(name, models)
    prompt = prompt_of(model, "first")
    text = f"<think>So.</think>{line}Hello<think> Or not.</think>{line} there.<|user|>"
    output = model.vocabulary.encode(text, add_special_tokens=False)
    reply = model.reader(prompt, TOLD, seed=b"turn").read(output)
    assert (reply.message["reasoning_content"], reply.message["content"]) == ("So. Or not.", "Hello there.")
    assert reply.parts == [3, 5, 8, 7]


@pytest.mark.parametrize("name", NAMES)
def test_no_part_of_a_reply_is_lost(models: Path, name: str) -> None:
    """Reasoning, content and calls join to the reply, but for marks and white space of the format's own, character for
    character. Without tools nothing is a call."""
    model, family = chat_format(name, models), (FAMILIES | VARIANTS)[name]

    @settings(deadline=None)
    @given(st.integers(0, 2**63))
    def check(seed: int) -> None:
        draw = random.Random(seed)
        output = drawn(draw, model, family)
        args = draw.choice([TOLD, NO_ARGS])
        reader = model.reader(prompt_of(model, draw.choice(list(PROMPTS))), args, seed=b"turn")
        end = next((at for at, each in enumerate(output) if each in reader.alphabet.ends), len(output))
        source, parser = ReplyText(reader.alphabet), reader.parser()
        pieces = [*parser.feed(source.feed(output)), *parser.feed(source.finish()), *parser.finish()]
        assert "".join(piece.text for piece in pieces) == model.vocabulary.decode(output[:end])
        for piece in pieces:
            assert piece.kind != "own" or is_own(model, reader.syntax, piece.text), piece
        message = reader.read(output).message
        assert (message.get("reasoning_content", ""), message["content"] or "") == told(reader, pieces)
        assert len(message.get("tool_calls", ())) == sum(piece.call is not None for piece in pieces)
        assert args.tools or "tool_calls" not in message

    check()


def told(reader: Reader, pieces: Sequence[Piece]) -> tuple[str, str]:
    """The reasoning and content of pieces, without the white space that the format's description names. Behind calls
    white space ends no content, and is none where that is all."""
    syntax, texts, content, called = reader.syntax, {"reasoning": "", "content": ""}, "", False
    starts = {"reasoning": syntax.around_reasoning[0], "content": syntax.gap}
    runs = [(kind, "".join(each.text for each in run)) for kind, run in groupby(pieces, lambda piece: piece.kind)]
    kinds = [reader.before, *(kind for kind, _ in runs), "end"]
    for before, (kind, text), behind in zip(kinds, runs, kinds[2:], strict=False):
        called = called or kind == "call"
        if kind in texts:
            texts[kind] += without_start(text, starts[kind]) if before == "own" else text
        if kind == "content" and not called:
            content = without_end(texts[kind], syntax.before_calls if behind == "call" else "")
        elif kind == "content" and text.strip():
            content = texts[kind].rstrip()
    if not any(piece.call for piece in pieces):
        content = without_end(texts["content"], syntax.behind_content)
    elif not content.strip():
        content = ""
    return without_end(texts["reasoning"], syntax.around_reasoning[1]), content


def without_start(text: str, own: str) -> str:
    """The text without as much of its format's own as it begins with."""
    return next(text[n:] for n in range(len(own), -1, -1) if text.startswith(own[:n]))


def without_end(text: str, own: str) -> str:
    return next(text[: len(text) - n] for n in range(len(own), -1, -1) if text.endswith(own[:n]))


def is_own(model: ChatFormat, syntax: Syntax, text: str) -> bool:
    """Whether there is nothing in a text but white space and what the format writes between the parts of a reply."""
    own = [*(syntax.think or ()), *syntax.around.block, syntax.header, syntax.label]
    own += [mark for section in syntax.around.sections.items() for mark in section]
    if model.name in ("gpt-oss", "inkling"):
        own += syntax.marks
        text = re.sub(r"^.*<\|message\|>$", "", text, flags=re.DOTALL)
    for mark in sorted(filter(None, own), key=len, reverse=True):
        text = text.replace(mark, "")
    return not text.strip()


@pytest.mark.parametrize(("name", "reasoning"), [("glm-4.5", None), ("glm-5.1", None), ("qwen3", "So.")])
def test_marks_of_thoughts_are_text_where_the_format_has_none_unasked(
    models: Path, name: str, reasoning: str | None
) -> None:
    """And the template is told that the model doesn't think."""
    model = chat_format(name, models)
    args = TemplateArgs(kwargs={"enable_thinking": False})
    prompt = model.prompt(PROMPTS["first"], args, []).ids
    text = "<think>So.</think>Hello." if name.startswith("glm") else "<think>So.</think>\n\nHello."
    message = model.reader(prompt, args, seed=b"turn").read(model.vocabulary.encode(text)).message
    assert message.get("reasoning_content") == reasoning
    assert message["content"] == (text if reasoning is None else "Hello.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpt-oss", "So.<|end|><|call|>\n<|start|>assistant<|channel|>final<|message|>Hello.<|end|><|end|>"),
        ("inkling", "<|content_thinking|>So.<|end_message|><|end_message|><|content_text|>Hello.<|message_model|>"),
    ],
)
def test_marks_between_messages_are_no_text(models: Path, name: str, text: str) -> None:
    model = chat_format(name, models)
    output, prompt = model.vocabulary.encode(text, add_special_tokens=False), prompt_of(model, "first")
    sent, message = streamed(model, prompt, [[each] for each in output])
    assert (message["content"], message["reasoning_content"]) == ("Hello.", "So.")
    assert joined(flatten(sent)) == flat(message)


@pytest.mark.parametrize("opened", ["<|content_thinking|>", "<|message_model|><|content_thinking|>"])
@pytest.mark.parametrize("thought", ["", "Or n"])
@pytest.mark.parametrize("ended", ["", "<|content_model_end_sampling|>"])
def test_a_thought_that_is_cut_off_takes_no_text_with_it(models: Path, opened: str, thought: str, ended: str) -> None:
    model = chat_format("inkling", models)
    text = f"<|content_text|>Hello.<|end_message|>{opened}{thought}{ended}"
    output, prompt = model.vocabulary.encode(text, add_special_tokens=False), prompt_of(model, "first")
    sent, message = streamed(model, prompt, [[each] for each in output])
    assert (message["content"], message.get("reasoning_content") or "") == ("Hello.", thought)
    assert joined(flatten(sent)) == flat(message)


@pytest.mark.parametrize(
    "rest", ["<think>\na\n</think>\n\nb", " \n<think>a", "\n\n<think>a", "<thin", "", "b <think>c"]
)
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1", "laguna-xs.2", "laguna-m.1", "laguna-xs-2.1"])
def test_a_role_mark_before_the_reply_is_sent_only_if_it_stays(models: Path, name: str, rest: str) -> None:
    model = chat_format(name, models)
    text = model.vocabulary.encode(rest, add_special_tokens=False)
    mark = "<\uff5cAssistant\uff5c>" if name.startswith("deepseek") else "<assistant>"
    output = [model.vocabulary.convert_tokens_to_ids(mark), *text]
    for sizes in ([], [1] * len(output)):
        sent, message = streamed(model, prompt_of(model, "first"), chunked(output, sizes))
        assert joined(flatten(sent)) == flat(message)


def test_spaces_at_the_end_wait(models: Path) -> None:
    model = chat_format("qwen3", models)
    parser = GrowingReply(model.reader([], NO_ARGS, seed=b""))
    texts = ["\n\n", "Hello", "  \n", "there", "\n"]
    sent = [joined(parser.feed(model.vocabulary.encode(text, add_special_tokens=False)))["content"] for text in texts]
    assert sent == ["", "\n\nHello", "", "  \nthere", ""]
    assert parser.finish(said("\n\nHello  \nthere\n")) == [Text("\n")]


def test_a_character_leaves_whole(models: Path) -> None:
    model = chat_format("qwen3", models)
    parser = GrowingReply(model.reader([], NO_ARGS, seed=b""))
    sent = [joined(parser.feed([token_id]))["content"] for token_id in byte_ids(model.vocabulary, "é🙂")]
    assert sent == ["", "é", "", "", "", "🙂"]


def test_a_tool_call_leaves_when_it_is_complete(models: Path) -> None:
    model = chat_format("qwen3", models)
    calls = "".join(f'<tool_call>{{"name": "find", "arguments": {{"n": {n}}}}}</tool_call>' for n in range(2))
    output = model.vocabulary.encode(calls + "<|im_end|>", add_special_tokens=False)
    sent, _ = streamed(model, prompt_of(model, "first"), [[token_id] for token_id in output])
    end = model.vocabulary.convert_tokens_to_ids("</tool_call>")
    closes = [position for position, token_id in enumerate(output) if token_id == end]
    assert [position for position, deltas in enumerate(sent) if deltas] == closes


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_is_what_came_before_the_stop_string_that_ended_it(models: Path, name: str) -> None:
    model, family = chat_format(name, models), (FAMILIES | VARIANTS)[name]
    stop = "\n~~>"

    @settings(deadline=None, max_examples=30)
    @given(st.integers(0, 2**63))
    def check(seed: int) -> None:
        draw = random.Random(seed)
        before = [each for each in drawn(draw, model, family) if each not in model.stop_token_ids]
        if draw.random() < 0.3:  # the engine was to go on for a while
            before += byte_ids(model.vocabulary, f"{stop} more")
        output = [*before, *byte_ids(model.vocabulary, stop + draw.choice(["", "~", " more"]))]
        reader = model.reader(prompt_of(model, draw.choice(list(PROMPTS))), TOLD, seed=b"turn")
        reply = reader.read(output, stop=stop)
        assert reply == reader.read(before)
        growing = GrowingReply(reader, stops=["###", stop])
        sent = [growing.feed(chunk) for chunk in chunked(output, [draw.randint(0, 9) for _ in range(9)])]
        assert joined(flatten([*sent, growing.finish(reply)])) == flat(reply.message)

    check()


class TestStopStrings:
    @given(st.lists(st.integers(1, 4), max_size=10))
    @settings(deadline=None)
    def test_nothing_of_a_stop_string_is_streamed(self, sizes: list[int]) -> None:
        model = shipped()
        output = byte_ids(model.vocabulary, "Fine. \nOb\nObserved.\nObservation: no")
        parser = GrowingReply(model.reader([], NO_ARGS, seed=b""), stops=["\nObservation:", "###"])
        sent = flatten(parser.feed(chunk) for chunk in chunked(output, sizes))
        reply = model.reader([], NO_ARGS, seed=b"").read(output, stop="\nObservation:")
        assert joined([*sent, *parser.finish(reply)])["content"] == "Fine. \nOb\nObserved."

    @pytest.mark.parametrize("stop", ["tool_call", "<tool_call>", "call>", "call>\nSo", "\n<tool"])
    def test_one_within_a_mark_ends_the_reply_before_it(self, models: Path, stop: str) -> None:
        model = chat_format("qwen3", models)
        output = model.vocabulary.encode("Look.\n<tool_call>\nSo", add_special_tokens=False)
        reader = model.reader([], TOLD, seed=b"")
        reply = reader.read(output, stop=stop)
        assert reply == said("Look." if stop.startswith("\n") else "Look.\n")
        parser = GrowingReply(reader, stops=[stop])
        sent = [delta for token in output for delta in parser.feed([token])]
        assert joined([*sent, *parser.finish(reply)])["content"] == reply.message["content"]

    def test_one_that_ended_nothing_is_content(self, models: Path) -> None:
        model = chat_format("qwen3", models)
        parser = GrowingReply(model.reader([], NO_ARGS, seed=b""), stops=["stop"])
        sent = parser.feed(model.vocabulary.encode("Please stop.", add_special_tokens=False))
        assert joined(sent)["content"] == "Please"
        assert joined(parser.finish(said("Please stop.")))["content"] == " stop."


class TestStopTokens:
    def test_nothing_of_a_stop_token_is_streamed_before_the_end(self, models: Path) -> None:
        model = chat_format("qwen3", models)
        stop, *_ = model.vocabulary.encode("!")
        output = [*model.vocabulary.encode("Fine"), stop, *model.vocabulary.encode(" so"), stop]
        parser = GrowingReply(model.reader([], NO_ARGS, seed=b""), stop_token_ids=[stop])
        sent = flatten(parser.feed([token]) for token in output)
        assert joined(sent)["content"] == "Fine! so"
        assert parser.finish(said("Fine! so")) == []

    def test_one_that_ended_nothing_is_content(self, models: Path) -> None:
        model = chat_format("qwen3", models)
        output = model.vocabulary.encode("Fine!")
        reader = model.reader([], NO_ARGS, seed=b"")
        parser = GrowingReply(reader, stop_token_ids=output[-1:])
        sent = parser.feed(output)
        assert joined([*sent, *parser.finish(reader.read(output))])["content"] == "Fine!"


def test_another_message_than_was_streamed_is_an_error(models: Path) -> None:
    model = chat_format("qwen3", models)
    call = '<tool_call>{"name": "find", "arguments": {}}</tool_call>'
    for text, message in [
        ("Hello there", {"content": "Goodbye"}),
        ("<think>hm ", {"content": "", "reasoning_content": "ha"}),
        (call, {"content": ""}),
    ]:
        parser = GrowingReply(model.reader([], NO_ARGS, seed=b""))
        parser.feed(model.vocabulary.encode(text, add_special_tokens=False))
        with pytest.raises(StreamDiverged):
            parser.finish(Reply({"role": "assistant", **message}, None))


def test_a_vocabulary_that_cannot_be_read_by_bytes_is_streamed_at_the_end(tmp_path: Path) -> None:
    model = without_byte_decoder(tmp_path / "m", "qwen3")
    output = model.vocabulary.encode("Hello there.<|im_end|>", add_special_tokens=False)
    sent, message = streamed(model, [], [[token_id] for token_id in output])
    assert flatten(sent[:-1]) == []
    assert joined(sent[-1])["content"] == message["content"] == "Hello there."


CALLING = """
{%- for m in messages %}{{ '<|im_start|>' + m.role }}{{ '\n' + m.content if m.content }}
{%- for c in m.tool_calls or [] %}{{ '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""As Qwen2.5's."""


@pytest.mark.parametrize(("text", "content"), [("Look.\n", "Look."), ("Look.\n\n", "Look.\n"), ("", None)])
def test_a_call_behind_text_comes_out_as_a_models_own_template_writes_it(
    tmp_path: Path, text: str, content: str | None
) -> None:
    directory = write_model(tmp_path, FAMILIES["qwen3"])
    (directory / "chat_template.jinja").write_text(CALLING)
    model = load(directory)
    prompt = model.prompt([{"role": "user", "content": "?"}], NO_ARGS, []).ids
    written = f'{text}<tool_call>\n{{"name": "find", "arguments": {{"q": "x"}}}}\n</tool_call><|im_end|>'
    output = model.vocabulary.encode(written)
    message = model.reader(prompt, TOLD, seed=b"a").read(output).message
    assert message["content"] == content
    found = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "R"}
    messages = [{"role": "user", "content": "?"}, message, found]
    parent = Candidate(2, lambda: (prompt, output))
    assert model.prompt(messages, NO_ARGS, [parent]).parent == 0


LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HEAD = "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<think>\n' if thinks }}{% endif %}"
ASKING = "Explain the <think> tag."


@pytest.mark.parametrize("spelled", [True, False], ids=["text", "token"])
@pytest.mark.parametrize(
    ("head", "kwargs", "written", "reasoning", "content"),
    [
        (HEAD, {}, "Fine.", None, "Fine."),
        (HEAD, {}, "<think>So.</think>Fine.", "So.", "Fine."),
        (HEAD, {"thinks": True}, "So.</think>Fine.", "So.", "Fine."),
        (HEAD.replace("think>", "thought>"), {}, "<think>So.</think>Fine.", None, "<think>So.</think>Fine."),
    ],
    ids=["no thought", "a thought", "an open thought", "no marks of thoughts"],
)
def test_a_users_words_open_no_thought_of_a_models_own_template(
    tmp_path: Path, spelled: bool, head: str, kwargs: dict[str, Any], written: str, reasoning: str | None, content: str
) -> None:
    family = FAMILIES["qwen3"]
    directory = write_model(tmp_path, replace(family, plain=()) if spelled else family)
    (directory / "chat_template.jinja").write_text(LOOP + head)
    model, args = load(directory), TemplateArgs(kwargs=kwargs)
    prompt = model.prompt([{"role": "user", "content": ASKING}], args, []).ids
    message = model.reader(prompt, args, seed=b"a").read(model.vocabulary.encode(f"{written}<|im_end|>")).message
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
