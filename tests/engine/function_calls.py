"""Replies read by SGLang's function-call parsers and by the proxy, and the table of docs/models.md where they differ.

`python -m tests.engine.function_calls` reads them and writes the table.
"""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from tests.engine.sglang import launch
from tests.engine.sglang.places import HERE, Installed, find
from tests.unit.proxy.tokens.models.call_replies import HELD
from tests.unit.proxy.tokens.models.families import chat_format
from tests.unit.proxy.tokens.models.measuring import ASKED
from tests.unit.proxy.tokens.models.page import PAGE
from tests.waiting import SGLANG_START

from rolloutfleet_proxy.domain.messages import TemplateArgs

PARSERS: Final = {
    "qwen3": "qwen",
    "qwen3.5": "qwen3_coder",
    "glm-4.5": "glm45",
    "kimi-k2": "kimi_k2",
    "deepseek-v3": "deepseekv3",
    "llama-3": "llama3",
}
ALL, TAGS, JSON = " ".join(PARSERS), "qwen3 qwen3.5 glm-4.5", "qwen3 kimi-k2 deepseek-v3 llama-3"
WITH_WORDS: Final = f"{TAGS} kimi-k2 deepseek-v3"
"""A reply of Llama's is a call or words."""
CUT: Final = "\0"
"""Parts what is encoded separately, so that no mark comes of it."""
WORDS: Final = ("find", "fetch", "Oslo", "Rome", "BEFORE", "BEHIND", "BETWEEN", "INSIDE", "1815")
"""Of which none may be lost."""
TEXT, OSLO, BOTH = "text", 'find {"q": "Oslo"}', 'find {"q": "Oslo"}, find {"q": "Rome"}'

STRING: Final = {"type": "string"}
VALUES: Final[dict[str, tuple[Any, Any, str]]] = {
    "a string like a number": (STRING, "12345", "the schema wants a string"),
    "a string like an object": (STRING, '{"a": 1}', "the schema wants a string"),
    "a string in quotation marks": (STRING, '"a"', "they are part of it"),
    "the string null": (STRING, "null", "the schema allows no null"),
    "a string or null, like a number": ({"anyOf": [STRING, {"type": "null"}]}, "12", "it allows no number"),
    "a string of an `enum`": ({"enum": ["1", "2"]}, "2", "it lists strings"),
    "a string or an integer": ({"anyOf": [STRING, {"type": "integer"}]}, 12, "JSON, where the schema allows it"),
    "an integer by `$ref`": ({"$ref": "#/$defs/N"}, 7, "the schema wants an integer"),
    "a large integer": ({"type": "integer"}, 12345678901234567890123, ""),
    "a float": ({"type": "number"}, 1.5, ""),
    "null where it is allowed": ({"type": ["integer", "null"]}, None, ""),
    "a list with an end mark in a string": ({"type": "array"}, ["1", None, "</tool_call>"], "a string may hold it"),
    "leading blanks": (STRING, "    return 1", "they belong to the string"),
    "a line break": (STRING, "\n", "it belongs to the string"),
    "line breaks and tabs": (STRING, "\ta\r\nb\r\n", "they belong to the string"),
}
"""Schema and value of an argument, and why that is right."""
USUAL: Final = ("a call", "two calls", "words before a call")
RIGHT: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    **{says: ((BOTH if says == "two calls" else OSLO,), "") for says in USUAL},
    "a call where no tools are given": ((TEXT,), ""),
    "words behind calls": ((BOTH,), "they were said"),
    "words between calls": ((BOTH,), "they were said"),
    "words within a block": ((OSLO, TEXT), "they were said"),
    "an end mark in a string": (('find {"q": "Oslo END Rome"}', TEXT), "half of it is another string"),
    "an end mark in ordinary tokens": (('find {"q": "Oslo END Rome"}',), "it is no mark"),
    "two functions in one block": ((BOTH, TEXT), "both were written"),
    "a parameter without its end": ((OSLO, TEXT), "no other string was written"),
    "a parameter twice": ((TEXT,), "neither value is known to be meant"),
    "arguments under `args`": ((TEXT,), "a call of nothing was not written"),
    "arguments under `parameters`": ((OSLO, TEXT), ""),
    "JSON with more keys than a call": ((TEXT,), "it is an answer"),
    "no end": ((OSLO, TEXT), "no part of a reply is lost"),
    "arguments as a JSON string": ((OSLO,), "it holds the object"),
    "arguments that are no JSON": ((TEXT,), "no agent can read them"),
    "a function that is not declared": (('fetch {"q": "Oslo"}', TEXT), "no part of a reply is lost"),
    "no line breaks": ((OSLO,), "models write so"),
    "the form of DeepSeek V3.1": ((OSLO,), "models write so"),
    "an id without `functions.` and index": ((OSLO,), "models write so"),
}
"""Readings that are right, and why."""
_DEEPSEEK: Final = "<\uff5ctool\u2581call\u2581end\uff5c>"
EDITS: Final = (
    ("a call", ALL, "", ""),
    ("two calls", WITH_WORDS, "", ""),
    ("words before a call", WITH_WORDS, "(?=<)", "BEFORE\n\n"),
    ("a call where no tools are given", ALL, "", ""),
    ("words behind calls", WITH_WORDS, r"\Z", "\nBEHIND"),
    ("words between calls", TAGS, "(?<=</tool_call>)", "\nBETWEEN"),
    ("words between calls", "kimi-k2", r"(?<=_call_end\|>)", "BETWEEN"),
    ("words between calls", "deepseek-v3", f"(?<={_DEEPSEEK})", "BETWEEN"),
    ("words within a block", "qwen3", r"(?=\{)", "INSIDE\n"),
    ("words within a block", "qwen3.5", "(?=<func)", "INSIDE\n"),
    ("words within a block", "glm-4.5", "(?=<arg_k)", "INSIDE\n"),
    ("an end mark in a string", TAGS, "Oslo", "Oslo </tool_call> Rome"),
    ("an end mark in a string", "qwen3.5", "Oslo", "Oslo </parameter> Rome"),
    ("an end mark in a string", "glm-4.5", "Oslo", "Oslo </arg_value> Rome"),
    ("an end mark in ordinary tokens", TAGS, "Oslo", f"Oslo </tool{CUT}_call> Rome"),
    ("an end mark in ordinary tokens", "kimi-k2", "Oslo", f"Oslo <|tool_call{CUT}_end|> Rome"),
    ("two functions in one block", "qwen3 qwen3.5", r"</tool_call>\n<tool_call>\n", ""),
    ("a parameter without its end", "qwen3.5", r"\n</parameter>", ""),
    ("a parameter without its end", "glm-4.5", "</arg_value>", ""),
    ("a parameter twice", JSON, '"Oslo"', '"Oslo", "q": "Rome"'),
    ("a parameter twice", "qwen3.5", "(?=</func)", "<parameter=q>\nRome\n</parameter>\n"),
    ("a parameter twice", "glm-4.5", "(?=</tool_call>)", "<arg_key>q</arg_key>\n<arg_value>Rome</arg_value>\n"),
    ("arguments under `args`", "qwen3 llama-3", '"(arg|par)[a-z]+"', '"args"'),
    ("arguments under `parameters`", "qwen3", '"arguments"', '"parameters"'),
    ("JSON with more keys than a call", "llama-3", r"}\Z", ', "born": 1815}'),
    ("no end", TAGS, r"\s*</tool_call>\Z", ""),
    ("no end", "kimi-k2", r"<\|tool_call_end.*", ""),
    ("no end", "deepseek-v3", f"{_DEEPSEEK}.*", ""),
    ("arguments as a JSON string", "qwen3 llama-3", r'\{"q": "Oslo"\}', r'"{\"q\": \"Oslo\"}"'),
    ("arguments that are no JSON", JSON, '"Oslo"', "Oslo"),
    ("a function that is not declared", ALL, "find", "fetch"),
    ("no line breaks", "qwen3 glm-4.5", r"(?<=.)\n", ""),
    ("the form of DeepSeek V3.1", "deepseek-v3", r"function(.*)find\n```json\n(.*)\n```", r"find\1\2"),
    ("an id without `functions.` and index", "kimi-k2", r"functions\.find:0", "find"),
)
"""What stands in a reply, in which formats, and what makes it of a usual one: a pattern and what comes in its place."""


class Case(NamedTuple):
    says: str
    family: str
    reply: str
    right: tuple[str, ...]
    why: str
    schema: Any

    @property
    def tools(self) -> list[dict[str, Any]]:
        parameters = {"type": "object", "properties": {"q": self.schema}, "$defs": {"N": {"type": "integer"}}}
        function = {"name": "find", "parameters": parameters}
        return [] if "no tools" in self.says else [{"type": "function", "function": function}]


class Readings(NamedTuple):
    whole: str
    streamed: str
    here: str


def read(sglang: Installed, folder: Path) -> list[tuple[Case, Readings]]:
    """All cases, read by SGLang at once and as they stream, and by the proxy."""
    tried, asked, here = list(_cases()), [], []
    for case in tried:
        model = chat_format(case.family, folder)
        args = TemplateArgs(case.tools, {"enable_thinking": False} if model.takes("enable_thinking") else None)
        ids = [token for part in case.reply.split(CUT) for token in model.vocabulary.encode(part)]
        pieces = [model.vocabulary.decode([token]) for token in ids]
        asked.append({"parser": PARSERS[case.family], "tools": case.tools, "pieces": pieces})
        reader = model.reader(model.prompt(ASKED, args, []).ids, args, seed=b"a")
        message = reader.read([*ids, model.stop_token_ids[0]]).message
        calls = [call["function"].values() for call in message.get("tool_calls", ())]
        here.append(_shown(case.reply, calls, message["content"] or ""))
    done = subprocess.run(
        [str(sglang.python), str(HERE / "parse.py")],
        env=launch.environment(sglang),
        input="".join(f"{json.dumps(each)}\n" for each in asked),
        capture_output=True,
        text=True,
        timeout=SGLANG_START,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = map(json.loads, done.stdout.splitlines())
    return [
        (case, Readings(_shown(case.reply, **whole), _shown(case.reply, **streamed), ours))
        for case, (whole, streamed), ours in zip(tried, theirs, here, strict=True)
    ]


def _cases() -> Iterator[Case]:
    for says, (schema, value, why) in VALUES.items():
        exact = _shown("", [("find", json.dumps({"q": value}))], "")
        yield from (Case(says, family, _reply(family, value), (exact,), why, schema) for family in PARSERS)
    for says, families, pattern, new in EDITS:
        right, why = RIGHT[says]
        cities = ("Oslo", "Rome") if BOTH in right else ("Oslo",)
        for family in families.split():
            reply = re.sub(pattern, new, _reply(family, *cities), count=1, flags=re.DOTALL)
            yield Case(says, family, reply, right, why, STRING)


def _reply(family: str, *values: Any) -> str:
    held = HELD[family]
    return held.thought["closed"] + held.calls([("find", {"q": value}) for value in values])


def _shown(reply: str, calls: Iterable[Iterable[str]], text: str) -> str:
    """The calls, else `text`, and what is lost of the words of a reply."""
    made = ", ".join(f"{name} {_arguments(arguments)}".strip() for name, arguments in calls)
    lost = [word for word in WORDS if word in reply and word not in made + text]
    without = f" without {' and '.join(lost)}" if lost else ""
    return made + without if made else "nothing" if "Oslo" in lost else TEXT + without


def _arguments(text: str) -> str:
    with suppress(ValueError):
        text = json.dumps(json.loads(text), ensure_ascii=False)
    return re.sub(r"</(tool_call|parameter|arg_value)>|<\|tool_call_end\|>", "END", text)


# The page

_HEAD: Final = "| a reply with | formats | SGLang | SGLang, streamed | here | right |\n|---|---|---|---|---|---|\n"
_VERDICTS: Final = {(True, True): "both", (True, False): "SGLang", (False, True): "here", (False, False): "neither"}
_TABLE: Final = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")


def with_table(page: str, found: Iterable[tuple[Case, Readings]]) -> str:
    """The page with a row for each difference."""
    rows = defaultdict[tuple[str, ...], list[str]](list)
    for case, each in found:
        if len(set(each)) > 1:
            right = _VERDICTS[{*each[:2]} <= {*case.right}, each.here in case.right]
            cells = [_cell(each.whole), "the same" if each.streamed == each.whole else _cell(each.streamed)]
            rows[case.says, *cells, _cell(each.here), f"{right}: {case.why}"].append(f"`{case.family}`")
    assert _TABLE.search(page), f"{PAGE} has no table of differences"
    told = [f"| {says} | {' '.join(names)} | {' | '.join(cells)} |\n" for (says, *cells), names in rows.items()]
    return _TABLE.sub(lambda _: _HEAD + "".join(told), page)


def _cell(shown: str) -> str:
    calls, without, lost = shown.partition(" without ")
    escaped = calls.replace("|", "\\|")
    return (calls if calls in (TEXT, "nothing") else f"`{escaped}`") + without + lost


if __name__ == "__main__":
    engine = find()
    assert engine is not None, "The real SGLang is not installed: make sglang"
    with TemporaryDirectory() as models:
        PAGE.write_text(with_table(PAGE.read_text(), read(engine, Path(models))))
