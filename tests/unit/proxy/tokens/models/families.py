"""Small models of many chat formats: a byte-level BPE trained here, with each family's own added tokens.

Special tokens, their spelling and what a reply looks like follow the families' published tokenizers and templates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.chat_formats import load
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.tokens.render import ChatFormat

Calls = Sequence[tuple[str, dict[str, Any]]]
Reply = Callable[[str, str, Calls], str]

BAR, LOW = "\uff5c", "\u2581"


def deepseek(name: str) -> str:
    return f"<{BAR}{name.replace(' ', LOW)}{BAR}>"


@dataclass(frozen=True)
class Family:
    name: str
    special: tuple[str, ...]
    """Added tokens that are special."""
    plain: tuple[str, ...] = ()
    """Added tokens that aren't: they stay when special tokens are skipped."""
    reply: Reply | None = None
    """What the model writes after the prompt for (reasoning, content, calls), its stop token included."""
    reasons: bool = True
    parallel: bool = True
    marks: tuple[str, ...] = ()
    """Marks that are ordinary text."""
    config: dict[str, Any] = field(default_factory=dict)


def dumps(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def hermes_calls(calls: Calls) -> str:
    return "".join(
        "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
        for name, arguments in calls
    )


def xml_calls(calls: Calls) -> str:
    return "".join(
        f"\n<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{dumps(value)}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def qwen3(reasoning: str, content: str, calls: Calls) -> str:
    thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    return thought + content + hermes_calls(calls) + "<|im_end|>"


def qwen35(reasoning: str, content: str, calls: Calls) -> str:
    return f"{reasoning}\n</think>\n\n{content}" + xml_calls(calls) + "<|im_end|>"


def glm(reasoning: str, content: str, calls: Calls) -> str:
    written = "".join(
        f"\n<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{dumps(value)}</arg_value>\n" for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )
    stop = "<|observation|>" if calls else "<|user|>"
    return f"\n<think>{reasoning}</think>\n{content}" + written + stop


def deepseek_calls(calls: Calls) -> str:
    if not calls:
        return ""
    return (
        deepseek("tool calls begin")
        + "\n".join(
            deepseek("tool call begin")
            + f"function{deepseek('tool sep')}{name}\n```json\n{json.dumps(arguments)}\n```"
            + deepseek("tool call end")
            for name, arguments in calls
        )
        + deepseek("tool calls end")
    )


def deepseek_v3(reasoning: str, content: str, calls: Calls) -> str:
    thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    return thought + content + deepseek_calls(calls) + deepseek("end of sentence")


def deepseek_r1(reasoning: str, content: str, calls: Calls) -> str:
    return f"{reasoning}\n</think>\n\n{content}" + deepseek_calls(calls) + deepseek("end of sentence")


def llama(reasoning: str, content: str, calls: Calls) -> str:
    for name, arguments in calls[:1]:
        return json.dumps({"name": name, "parameters": arguments}) + "<|eot_id|>"
    return content + "<|eot_id|>"


def minimax(reasoning: str, content: str, calls: Calls) -> str:
    written = ""
    if calls:
        written = (
            "\n<minimax:tool_call>\n"
            + "".join(
                f'<invoke name="{name}">\n'
                + "".join(f'<parameter name="{key}">{dumps(value)}</parameter>\n' for key, value in arguments.items())
                + "</invoke>\n"
                for name, arguments in calls
            )
            + "</minimax:tool_call>"
        )
    return f"{reasoning}\n</think>\n\n{content}" + written + "[e~["


def kimi(reasoning: str, content: str, calls: Calls) -> str:
    thought = f"<think>{reasoning}</think>" if reasoning else ""
    written = ""
    if calls:
        written = (
            "<|tool_calls_section_begin|>"
            + "".join(
                f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{json.dumps(arguments)}"
                "<|tool_call_end|>"
                for index, (name, arguments) in enumerate(calls)
            )
            + "<|tool_calls_section_end|>"
        )
    return thought + content + written + "<|im_end|>"


def harmony(reasoning: str, content: str, calls: Calls) -> str:
    text = f"{reasoning}<|end|>"
    if content:
        channel, end = ("commentary", "<|end|>") if calls else ("final", "<|return|>")
        text += f"<|start|>assistant<|channel|>{channel}<|message|>{content}{end}"
    for name, arguments in calls[:1]:
        text += f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        text += json.dumps(arguments) + "<|call|>"
    return text


QWEN_PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
GLM_SPECIAL = (
    *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
)
GLM_PLAIN = (
    *("/nothink", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
DEEPSEEK_SPECIAL = tuple(map(deepseek, ("begin of sentence", "end of sentence")))
DEEPSEEK_PLAIN = tuple(
    map(
        deepseek,
        (
            *("User", "Assistant", "tool calls begin", "tool calls end", "tool call begin", "tool call end"),
            *("tool sep", "tool outputs begin", "tool outputs end", "tool output begin", "tool output end"),
        ),
    )
)
KIMI_SPECIAL = (
    *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
HARMONY_TOKENS = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200000: "<|reserved_200000|>",
    200001: "<|reserved_200001|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200004: "<|reserved_200004|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200009: "<|reserved_200009|>",
    200010: "<|reserved_200010|>",
    200011: "<|reserved_200011|>",
    200012: "<|call|>",
}
HY = ":opensource"

FAMILIES = {
    family.name: family
    for family in (
        Family("qwen3", QWEN_SPECIAL, QWEN_PLAIN, qwen3),
        Family("qwen3.5", (*QWEN_SPECIAL, *QWEN_VISION), QWEN_PLAIN, qwen35),
        Family("glm-4.5", GLM_SPECIAL, GLM_PLAIN, glm),
        Family(
            "deepseek-v3",
            DEEPSEEK_SPECIAL,
            DEEPSEEK_PLAIN,
            deepseek_v3,
            marks=("<think>", "</think>"),
        ),
        Family("deepseek-r1", DEEPSEEK_SPECIAL, (*DEEPSEEK_PLAIN, "<think>", "</think>"), deepseek_r1),
        Family(
            "llama-3",
            (
                *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
                *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
            ),
            (),
            llama,
            reasons=False,
            parallel=False,
            marks=('{"name": "find", "parameters": {}}', "{", "}"),
        ),
        Family(
            "minimax-m2",
            ("]~!b[", "]~b]", "[e~["),
            ("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
            minimax,
            marks=('<invoke name="find">', "</invoke>"),
        ),
        Family("kimi-k2", KIMI_SPECIAL, (), kimi, marks=("<think>", "</think>")),
        Family("gpt-oss", tuple(HARMONY_TOKENS.values()), (), harmony, parallel=False),
        Family(
            "kimi-k2.5",
            (*KIMI_SPECIAL, "<|endoftext|>", "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
            ("<think>", "</think>"),
        ),
        Family("glm-5", GLM_SPECIAL, GLM_PLAIN),
        Family("nemotron-3", (*QWEN_SPECIAL, "<image>"), QWEN_PLAIN),
        Family(
            "hy3",
            tuple(f"<{BAR}{name}{HY}{BAR}>" for name in ("hy_begin_of_sentence", "hy_eos", "hy_User", "hy_Assistant")),
            (
                f"<{BAR}reasoning_mode{HY}{BAR}>",
                *(f"<{slash}{name}{HY}>" for name in ("think", "tool_calls", "tool_call") for slash in ("", "/")),
                *(f"<{slash}{name}{HY}>" for name in ("arg_key", "arg_value", "tool_responses") for slash in ("", "/")),
                *(f"<{slash}tool_response{HY}>" for slash in ("", "/")),
                f"<tool_sep{HY}>",
            ),
        ),
        Family(
            "laguna-xs.2",
            ("\u3008|EOS|\u3009",),
            ("<think>", "</think>", "<assistant>", "</assistant>", "<tool_call>", "</tool_call>"),
            marks=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
        Family(
            "inkling",
            (
                *("<|message_user|>", "<|message_model|>", "<|message_system|>", "<|message_tool|>"),
                *("<|content_text|>", "<|content_thinking|>", "<|content_image|>", "<|content_audio_input|>"),
                *("<|content_xml|>", "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"),
                *("<|end_message|>", "<|audio_end|>", "<|unused_200054|>", "<|unused_200053|>", "<|endoftext|>"),
                "<|content_model_end_sampling|>",
            ),
        ),
        Family(
            "gemma4",
            (
                *(
                    "<bos>",
                    "<eos>",
                    "<|turn>",
                    "<turn|>",
                    "<|channel>",
                    "<channel|>",
                    "<|think|>",
                    "<|tool>",
                    "<tool|>",
                ),
                *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|image>", "<|image|>"),
                *("<image|>", '<|"|>'),
            ),
            marks=("thought\n",),
        ),
    )
}

VARIANTS = {
    family.name: family
    for family in (
        *(Family(name, (*QWEN_SPECIAL, *QWEN_VISION), QWEN_PLAIN) for name in ("qwen3.6", "qwen3.8", "qwen3-vl")),
        Family("prime-qwen3", QWEN_SPECIAL, QWEN_PLAIN),
        *(Family(name, (*QWEN_SPECIAL, "<image>"), QWEN_PLAIN) for name in ("nemotron-3-ultra", "nemotron-3.5")),
        *(Family(name, GLM_SPECIAL, GLM_PLAIN) for name in ("glm-5.1", "glm-5.3")),
        *(
            Family(name, FAMILIES["laguna-xs.2"].special, FAMILIES["laguna-xs.2"].plain)
            for name in ("laguna-m.1", "laguna-s-2.1", "laguna-xs-2.1")
        ),
        Family(
            "deepseek-v4",
            (
                *DEEPSEEK_SPECIAL,
                *(f"<{BAR}{name}{BAR}>" for name in ("User", "Assistant", "latest_reminder", "action", "query")),
                *(f"<{BAR}{name}{BAR}>" for name in ("authority", "domain", "title", "read_url")),
            ),
            (f"{BAR}DSML{BAR}", "<think>", "</think>"),
        ),
    )
}
"""Formats that stand on one of those, or of which little is tried."""

PHRASES = (
    "The agent reads a file, calls a tool and answers with what it found. ",
    'user assistant system model thought function name arguments parameter {"city": "Oslo", "n": 12} ',
    "It was 17.5 degrees in Oslo and 21 in Rome; nobody had asked.\n\n",
    "def weather(city: str) -> float:\n    return 17.5\n",
    "Größe, naïve, 東京 and émigré 🙂 are words too.\n",
)


@cache
def _merges() -> str:
    """A trained tokenizer without added tokens, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(PHRASES * 3, trainer)
    text: str = tokenizer.to_str()
    return text


def tokenizer_of(family: Family) -> Tokenizer:
    tokenizer = Tokenizer.from_str(_merges())
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.plain])
    return tokenizer


def write_model(directory: Path, family: Family, *, config: dict[str, Any] | None = None) -> Path:
    """A model directory with all but weights."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer_of(family).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": family.special[-1]}))
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": 4096, **(config or {})}))
    return directory


def without_byte_decoder(directory: Path, name: str) -> ChatFormat:
    """A family's chat format whose decoder is a sequence of two, so that no token has bytes of its own."""
    file = write_model(directory, FAMILIES[name]) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [tokenizer["decoder"], {"type": "Fuse"}]}
    file.write_text(json.dumps(tokenizer))
    return load(directory, renderer=name)


@cache
def _gpt_oss() -> ChatFormat:
    """Made once a process: it takes seconds, and as many again with the quick encoder."""
    from tests.unit.proxy.tokens.models import harmony as real

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "fastokens", None)
        return load(real.write_model(Path(folder) / "gpt-oss"))


@cache
def chat_format(name: str, directory: Path) -> ChatFormat:
    """The chat format of a family, by its renderer's name."""
    if name == "gpt-oss":
        return _gpt_oss()
    return load(write_model(directory / name.replace(".", "-"), (FAMILIES | VARIANTS)[name]), renderer=name)


@cache
def shipped() -> ChatFormat:
    """Of the model that the simulated engine ships, made once a process."""
    return load(model_path())
