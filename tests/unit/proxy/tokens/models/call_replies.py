"""How the formats whose calls a grammar can hold write calls, after the templates that the families publish."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Calls = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Held:
    name: str
    answer: str
    """The mark of an answer."""
    openings: Mapping[str, str]
    """What stands between the mark of an answer and the reply, by what it says of reasoning."""
    thought: Mapping[str, str]
    """Reasoning as a reply writes it there."""
    calls: Callable[[Calls], str]
    lead: str = ""
    """What a reply without reasoning begins with where the prompt leaves that to it."""
    closed_by: Mapping[str, Any] = field(default_factory=dict)
    """Template arguments of a prompt that closes reasoning."""
    marks: tuple[str, ...]
    """What opens a call."""
    ends: tuple[str, ...] = ()
    """What ends a string that is written as it is, where that is text."""
    gap: str = "\n"
    """What stands between text and calls."""
    parallel: bool = True
    beside: bool = True
    """Whether text may come before calls."""


def hermes(calls: Calls) -> str:
    return "\n".join(
        "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"
        for name, arguments in calls
    )


def raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def qwen_xml(calls: Calls) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{raw(value)}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def glm(line: str) -> Callable[[Calls], str]:
    def written(calls: Calls) -> str:
        return "".join(
            f"<tool_call>{name}{line}"
            + "".join(
                f"<arg_key>{key}</arg_key>{line}<arg_value>{raw(value)}</arg_value>{line}"
                for key, value in arguments.items()
            )
            + "</tool_call>"
            for name, arguments in calls
        )

    return written


def deepseek(calls: Calls) -> str:
    written = "".join(
        f"<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>{name}\n```json\n"
        + json.dumps(arguments, ensure_ascii=False)
        + "\n```<\uff5ctool\u2581call\u2581end\uff5c>"
        for name, arguments in calls
    )
    return f"<\uff5ctool\u2581calls\u2581begin\uff5c>{written}<\uff5ctool\u2581calls\u2581end\uff5c>"


def kimi(calls: Calls) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
        + json.dumps(arguments, ensure_ascii=False)
        + "<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def minimax(calls: Calls) -> str:
    written = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{raw(value)}</parameter>\n' for key, value in arguments.items())
        + "</invoke>\n"
        for name, arguments in calls
    )
    return f"<minimax:tool_call>\n{written}</minimax:tool_call>"


def hy3(calls: Calls) -> str:
    written = "".join(
        f"<tool_call>{name}<tool_sep>\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{raw(value)}</arg_value>\n" for key, value in arguments.items()
        )
        + "</tool_call>\n"
        for name, arguments in calls
    )
    return re.sub("(</?(tool|arg)_[a-z]+)>", r"\1:opensource>", f"<tool_calls>\n{written}</tool_calls>")


def llama(calls: Calls) -> str:
    return "".join(json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False) for name, arguments in calls)


CHATML = "assistant\n"
OPENED = {"open": f"{CHATML}<think>\n", "closed": f"{CHATML}<think>\n\n</think>\n\n"}
THOUGHT = {"open": "Hm.\n</think>\n\n", "closed": ""}

HELD = {
    held.name: held
    for held in (
        Held(
            name="qwen3",
            answer="<|im_start|>",
            openings={
                "free": CHATML,
                "open": f"{CHATML}<think>\n",
                "closed": f"{CHATML}<think>\n\n</think>\n\n",
            },
            thought={"free": "<think>\nHm.\n</think>\n\n", "open": "Hm.\n</think>\n\n", "closed": ""},
            calls=hermes,
            marks=("<tool_call>",),
        ),
        Held(
            name="qwen3.5",
            answer="<|im_start|>",
            openings=OPENED,
            thought=THOUGHT,
            calls=qwen_xml,
            marks=("<tool_call>",),
            ends=("\n</parameter>\n",),
            gap="\n\n",
        ),
        Held(
            name="glm-4.5",
            answer="<|assistant|>",
            openings={"free": "", "closed": "\n<think></think>"},
            thought={"free": "\n<think>Hm.</think>\n", "closed": "\n"},
            calls=glm("\n"),
            lead="\n",
            closed_by={"enable_thinking": False},
            marks=("<tool_call>", "<arg_key>"),
        ),
        Held(
            name="glm-5",
            answer="<|assistant|>",
            openings={"open": "<think>", "closed": "</think>"},
            thought={"open": "Hm.</think>", "closed": ""},
            calls=glm(""),
            closed_by={"enable_thinking": False},
            marks=("<tool_call>", "<arg_key>"),
            gap="",
        ),
        Held(
            name="laguna-xs.2",
            answer="<assistant>",
            openings={"open": "\n<think>", "closed": "\n</think>"},
            thought={"open": "\nHm.\n</think>\n", "closed": "\n"},
            calls=lambda calls: "\n".join(map(glm("\n"), [[call] for call in calls])) + "\n",
            marks=("<tool_call>",),
            ends=("</arg_value>\n",),
        ),
        Held(
            name="laguna-xs-2.1",
            answer="<assistant>",
            openings={"open": "<think>", "closed": "</think>"},
            thought={"open": "Hm.</think>", "closed": ""},
            calls=glm(""),
            marks=("<tool_call>",),
            ends=("</arg_value>",),
            gap="",
        ),
        Held(
            name="nemotron-3",
            answer="<|im_start|>",
            openings={"open": f"{CHATML}<think>\n", "closed": f"{CHATML}<think></think>"},
            thought={"open": "Hm.\n</think>\n", "closed": "\n"},
            calls=lambda calls: qwen_xml(calls) + "\n",
            marks=("<tool_call>",),
            ends=("\n</parameter>\n",),
        ),
        Held(
            name="hy3",
            answer="<\uff5chy_Assistant:opensource\uff5c>",
            openings={"open": "<think:opensource>", "closed": "<think:opensource></think:opensource>"},
            thought={"open": "Hm.</think:opensource>", "closed": ""},
            calls=hy3,
            marks=("<tool_calls:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>"),
            gap="",
        ),
        Held(
            name="minimax-m2",
            answer="]~b]",
            openings={"open": "ai\n<think>\n"},
            thought={"open": "Hm.\n</think>\n\n"},
            calls=minimax,
            marks=("<minimax:tool_call>",),
            ends=("</parameter>\n",),
        ),
        Held(
            name="llama-3",
            answer="<|end_header_id|>",
            openings={"closed": "\n\n"},
            thought={"closed": ""},
            calls=llama,
            marks=(),
            parallel=False,
            beside=False,
        ),
        Held(
            name="kimi-k2",
            answer="<|im_assistant|>",
            openings={"closed": "assistant<|im_middle|>"},
            thought={"closed": ""},
            calls=kimi,
            marks=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
            gap="",
        ),
        Held(
            name="kimi-k2.5",
            answer="<|im_assistant|>",
            openings={
                "open": "assistant<|im_middle|><think>",
                "closed": "assistant<|im_middle|><think></think>",
            },
            thought={"open": "Hm.</think>", "closed": ""},
            calls=kimi,
            marks=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
            gap="",
        ),
        Held(
            name="deepseek-v3",
            answer="<\uff5cAssistant\uff5c>",
            openings={"closed": ""},
            thought={"closed": ""},
            calls=deepseek,
            marks=("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581sep\uff5c>"),
            gap="",
        ),
        Held(
            name="deepseek-r1",
            answer="<\uff5cAssistant\uff5c>",
            openings={"open": "<think>\n"},
            thought={"open": "Hm.\n</think>\n\n"},
            calls=deepseek,
            marks=("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581sep\uff5c>"),
            gap="",
        ),
    )
}

SAME_AS = {"qwen3-vl": "qwen3", "qwen3.6": "qwen3.5", "qwen3.8": "qwen3.5", "prime-qwen3": "qwen3.5"}
SAME_AS |= {"nemotron-3-ultra": "nemotron-3", "nemotron-3.5": "nemotron-3"}
SAME_AS |= {"glm-5.1": "glm-5", "glm-5.3": "glm-5", "laguna-m.1": "laguna-xs.2", "laguna-s-2.1": "laguna-xs-2.1"}
"""Formats that write calls as others do."""
