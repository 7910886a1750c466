"""Grammars of a request's own (a JSON schema, a regex, EBNF) behind a thought, as SGLang's `structural_tag`. Pure.

Such a grammar holds a reply from its first token on. Where the prompt has opened a thought, all that the grammar made
would be reasoning, and the answer empty. So a thought comes first, free but for the marks that end it: it must end
where the prompt has opened it, and may be there where the prompt leaves it to the model. Its marks are tokens, by id:
spelled letter by letter they are none to a reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet_proxy.tokens.call_grammar import (
    Form,
    Marks,
    Thinking,
    free_text,
    gap_forms,
    optional,
    sequence,
    text,
    thinking_at,
    token,
    token_order,
)
from rolloutfleet_proxy.tokens.call_syntax import SYNTAXES, Syntax
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class Thoughts:
    """A format's thoughts in one vocabulary."""

    syntax: Syntax
    marks: Marks
    opened: Form
    closed: Sequence[Form]
    """The mark that ends a thought, and what stands behind it."""

    def before(self, sampling: Mapping[str, Any], prompt_ids: Sequence[int]) -> str | None:
        """The `structural_tag` of a reply to a prompt that thinks before what its sampling parameters hold it to; None
        where they hold it to nothing, or the prompt leaves no thought to it."""
        name = next((name for name in _FORMS if name in sampling), None)
        thinking = thinking_at(prompt_ids, self.marks)
        if name is None or thinking is Thinking.CLOSED:
            return None
        form = sequence([*token_order(self.marks), *self._thought(thinking), _FORMS[name](sampling[name])])
        return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)

    def _thought(self, thinking: Thinking) -> list[Form]:
        syntax = self.syntax
        thought = [free_text(self.marks), *self.closed, *gap_forms(syntax.gap)]
        if thinking is Thinking.OPEN:
            return thought
        return [optional(sequence([*_texts(syntax.lead), self.opened, *_texts(syntax.label), *thought]))]


def thoughts_of(name: str, vocabulary: Vocabulary, stops: Sequence[int], calls: Marks | None) -> Thoughts | None:
    """None where a format has no thoughts, or the vocabulary lacks their marks. `calls` are the marks in the model's
    grammars of tool calls, if it has any."""
    syntax = SYNTAXES.get(name)
    if syntax is None or syntax.think is None:
        return None
    opened, closed = vocabulary.convert_tokens_to_ids(syntax.think)
    if opened is None or closed is None:
        return None
    ends = [vocabulary.decode([stop]) for stop in stops]
    answers = vocabulary.convert_tokens_to_ids(syntax.answers)
    head = list(zip(vocabulary.convert_tokens_to_ids(syntax.answer_head), syntax.answer_head, strict=True))
    head_marks = {part: each for each, part in head if each in vocabulary.marks}
    around_calls = [begin for begin, _ in (*syntax.sections, *([syntax.block] if syntax.block else ()))]
    kept_out = (*syntax.think, *head_marks, *syntax.marks, *around_calls, *(calls.kept_out if calls else ()), *ends)
    marks = Marks(
        tokens=tuple(dict.fromkeys((*(calls.tokens if calls else ()), opened, closed, *head_marks.values()))),
        answers=frozenset(each for each in answers if each is not None),
        think=(opened, closed),
        think_texts=syntax.think,
        kept_out=tuple(dict.fromkeys(kept_out)),
    )
    behind = [token(head_marks[part]) if part in head_marks else text(part) for _, part in head]
    return Thoughts(syntax=syntax, marks=marks, opened=token(opened), closed=(token(closed), *behind))


def _texts(value: str) -> list[Form]:
    return [text(value)] if value else []


_FORMS: Final[Mapping[str, Callable[[str], Form]]] = {
    "json_schema": lambda schema: {"type": "json_schema", "json_schema": json.loads(schema)},
    "regex": lambda pattern: {"type": "regex", "pattern": pattern},
    "ebnf": lambda grammar: {"type": "grammar", "grammar": grammar},
}
"""By SGLang's sampling parameter. A `structural_tag` of the request's is of its whole reply."""
