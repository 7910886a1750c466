"""SGLang's `structural_tag`, in the form that xgrammar compiles there, as a grammar of `llguidance`. Pure.

Of its kinds those are taken that hold a chat's tool calls, or a request's own grammar behind a thought: texts, one
token by its id, free text, regexes, JSON schemas, EBNF and what joins them. A mark, which is an added token, is a token
in texts too. Free text leaves out marks, and other words where these come next.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from llguidance.gbnf_to_lark import gbnf_to_lark

from rolloutfleet_engine.requests import GrammarRefused
from rolloutfleet_engine.script import sentences, value_for

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

DEEPEST: Final = 64
SPACING: Final["JsonCompileOptions"] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: else spaces without end would be allowed."""

NOTHING: Final = re.compile(r'root ::= (\w+)\n\1 ::= \1 "\w"')
"""A grammar that matches nothing, of which SGLang has no other form."""
EXAMPLES: Final = ("A", "1", "")
"""One of these suits most regexes of tool calls."""

Form = dict[str, Any]


def lark_of(structural_tag: str, marks: Mapping[str, int]) -> str:
    """The grammar; the tokens that `marks` names stand in its texts as tokens. Raises `GrammarRefused` for what is no
    structural tag, or none of the kinds that are simulated."""
    try:
        given = json.loads(structural_tag)
        return _Lark(marks).whole(given["format"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GrammarRefused(f"Failed to compile structural_tag grammar: {error!r}") from None


def example_of_tag(structural_tag: str, encode: Callable[[str], list[int]], rng: random.Random) -> list[int]:
    """Tokens that suit a structural tag which `lark_of` takes, as far as its schemas are of the kinds that tools
    declare; what a regex or a grammar holds to is left out where no example is known."""

    def of(form: Form) -> list[int]:
        match form["type"]:
            case "token":
                return [int(form["token"])]
            case "const_string":
                return encode(form["value"])
            case "json_schema":
                return encode(example_of(form["json_schema"], rng))
            case "regex":
                return encode(next((text for text in EXAMPLES if _matches(form["pattern"], text)), ""))
            case "grammar":
                return []
            case "any_text":
                return encode(sentences(rng, 1, 3))
            case "tag":
                return [*encode(form["begin"]), *of(form["content"]), *encode(form["end"])]
            case "sequence":
                return [token for element in form["elements"] for token in of(element)]
            case "or":
                return of(rng.choice(form["elements"]))
            case "optional" if _is_nothing(form["content"]):
                return []
            case kind:
                least, most = {"optional": (0, 1), "star": (0, 2), "plus": (1, 2)}[kind]
                return [token for _ in range(rng.randint(least, most)) for token in of(form["content"])]

    return of(json.loads(structural_tag)["format"])


def example_of(schema: Any, rng: random.Random) -> str:
    """JSON that suits a schema, as far as that is one of the kinds that tools declare."""
    root = schema if isinstance(schema, dict) else {}
    return json.dumps(value_for(schema, rng, root=root), ensure_ascii=False)


def lark_of_ebnf(text: str) -> str:
    """A grammar as SGLang takes it in `ebnf`. Raises ValueError."""
    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # that is the class of what it raises where a rule is missing
        raise ValueError(str(error)) from None


class _Lark:
    def __init__(self, marks: Mapping[str, int]) -> None:
        self._marks = marks
        self._terminals: dict[str, str] = {}
        """Names by what stands for them."""
        self._split = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")

    def whole(self, form: Form) -> str:
        start = self.of(form, 0)
        return "\n".join([f"start: {start}", *(f"{name}: {text}" for text, name in self._terminals.items()), ""])

    def of(self, form: Form, depth: int) -> str:
        if depth > DEEPEST:
            raise ValueError("it is nested too deep")
        match form["type"]:
            case "token":
                return f"<[{int(form['token'])}]>"
            case "const_string":
                return self._text(form["value"])
            case "any_text":
                marks = [text for text in form.get("excludes", ()) if text in self._marks]
                excluded = ",".join(str(self._marks[text]) for text in marks)
                return f"<[^{excluded}]>*" if excluded else "<[*]>*"
            case "json_schema" | "regex" | "grammar":
                return _whole_grammar(form)
            case "tag":
                return f"{self._text(form['begin'])} {self.of(form['content'], depth + 1)} {self._text(form['end'])}"
            case "sequence":
                return " ".join(self._elements(form["elements"], depth + 1))
            case "or":
                return "(" + " | ".join(self.of(element, depth + 1) for element in form["elements"]) + ")"
            case "optional" if _is_nothing(form["content"]):
                return ""
            case "optional" | "star" | "plus" as kind:
                return f"({self.of(form['content'], depth + 1)})" + {"optional": "?", "star": "*", "plus": "+"}[kind]
            case kind:
                raise ValueError(f"the simulated engine knows no such format of type {kind!r}")

    def _elements(self, elements: list[Form], depth: int) -> Iterator[str]:
        rest = iter(zip(elements, [*elements[1:], {"type": "end"}], strict=True))
        for element, following in rest:
            words = [word for word in element.get("excludes", ()) if word not in self._marks]
            if words and following["type"] == "const_string":
                yield self._text_until(element["excludes"], words, following["value"])
                next(rest)
            else:
                yield self.of(element, depth)

    def _text_until(self, excludes: list[str], words: list[str], end: str) -> str:
        """Text up to an end that holds some of the words left out, each once: a lexer takes as much as it can."""
        within = {word: _regex(word) for word in words if word in end}
        left_out = [_regex(each) for each in excludes if each not in within]
        left_out += [f"{word}(?s:.*){word}" for word in within.values()]
        terminal = f"/(?s:.*){_regex(end)}/ & ~/(?s:.*)({'|'.join(left_out)})(?s:.*)/"
        return self._terminals.setdefault(terminal, f"TEXT_{len(self._terminals)}")

    def _text(self, value: str) -> str:
        if value.startswith("{"):  # A lexeme of its own, as it is in JSON that may stand in this text's place.
            return f'"{{" {self._text(value[1:])}'
        parts: list[str] = []
        place = 0
        for found in self._split.finditer(value):
            parts += [json.dumps(value[place : found.start()], ensure_ascii=False), f"<[{self._marks[found[0]]}]>"]
            place = found.end()
        return " ".join(part for part in (*parts, json.dumps(value[place:], ensure_ascii=False)) if part != '""')


def _whole_grammar(form: Form) -> str:
    """A form that is a grammar of a kind of its own."""
    match form["type"]:
        case "json_schema" if form.get("style", "json") == "json":
            return "%json " + json.dumps({**form["json_schema"], "x-guidance": SPACING})
        case "regex":
            return f"/{_SLASH.sub(_escaped, form['pattern'])}/"
        case "grammar":
            return f"%lark {{\n{lark_of_ebnf(form['grammar'])}\n}}"
        case kind:
            raise ValueError(f"the simulated engine knows no such {kind}")


def _is_nothing(form: Form) -> bool:
    """Whether it is a sequence that can't begin."""
    first = form["elements"][0] if form["type"] == "sequence" else form
    return first["type"] == "grammar" and NOTHING.fullmatch(first["grammar"]) is not None


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return False


_SLASH: Final = re.compile(r"\\.|[/\n]", re.DOTALL)


def _escaped(found: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(found[0], found[0])


def _regex(text: str) -> str:
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")
