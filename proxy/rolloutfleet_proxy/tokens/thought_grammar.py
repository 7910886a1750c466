"""Grammars of a request's own (a JSON schema, a regex, EBNF) behind a thought, as SGLang's `structural_tag`. Pure.

Such a grammar holds a reply from its first token on. Where the prompt has opened a thought, all that the grammar made
would be reasoning, and the answer empty. So a thought comes first, free but for the marks that end it: it must end
where the prompt has opened it, and may be there where the prompt leaves it to the model. Its marks are tokens, by id:
spelled letter by letter they are none to a reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rolloutfleet_proxy.tokens.call_grammar import (
    Form,
    Marks,
    Thinking,
    free_text,
    optional,
    sequence,
    text,
    thinking_at,
    token,
    token_order,
)
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ThoughtSyntax:
    """How a chat format writes a thought, and what comes between that and the answer."""

    answers: tuple[str, ...] = ()
    """The marks behind which a reply begins."""
    marks: tuple[str, str] = ("<think>", "</think>")
    """Around a thought. In a vocabulary that lacks them the format doesn't think."""
    named: str = ""
    """What stands behind the mark that opens a thought, where the reply opens it."""
    then: tuple[str, ...] = ()
    """What stands behind the mark that ends it: marks, and texts."""
    gap: str = ""
    """What may stand behind that. Reading drops it."""
    lead: str = ""
    """What stands before a thought that the reply opens."""
    kept_out: tuple[str, ...] = ()
    """What a thought doesn't hold beside its own marks, those of a grammar of calls, and the tokens that end a turn."""
    optional: bool = True
    """Whether a reply without a thought is read as an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thoughts:
    """A format's thoughts in one vocabulary."""

    syntax: ThoughtSyntax
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
        gap = [optional(text(syntax.gap))] if syntax.gap else []
        thought = [free_text(self.marks), *self.closed, *gap]
        if thinking is Thinking.OPEN:
            return thought
        thought = [*_texts(syntax.lead), self.opened, *_texts(syntax.named), *thought]
        return [optional(sequence(thought))] if syntax.optional else thought


def thoughts_of(name: str, vocabulary: Vocabulary, stops: Sequence[int], calls: Marks | None) -> Thoughts | None:
    """None where a format has no thoughts, or the vocabulary lacks their marks. `calls` are the marks in the model's
    grammars of tool calls, if it has any."""
    syntax = _SYNTAXES.get(name)
    if syntax is None:
        return None
    opened, closed = vocabulary.convert_tokens_to_ids(syntax.marks)
    if opened is None or closed is None:
        return None
    ends = [vocabulary.decode([stop]) for stop in stops]
    answers = vocabulary.convert_tokens_to_ids(syntax.answers)
    then = vocabulary.convert_tokens_to_ids(syntax.then)
    tokens = (*(calls.tokens if calls else ()), opened, closed, *(each for each in then if each in vocabulary.marks))
    marks = Marks(
        tokens=tuple(dict.fromkeys(tokens)),
        answers=frozenset(each for each in answers if each is not None),
        think=(opened, closed),
        think_texts=syntax.marks,
        kept_out=tuple(dict.fromkeys((*syntax.marks, *syntax.kept_out, *(calls.kept_out if calls else ()), *ends))),
    )
    behind = [
        token(each) if each in vocabulary.marks else text(part) for each, part in zip(then, syntax.then, strict=True)
    ]
    return Thoughts(syntax=syntax, marks=marks, opened=token(opened), closed=(token(closed), *behind))


def _texts(value: str) -> list[Form]:
    return [text(value)] if value else []


_FORMS: Final[Mapping[str, Callable[[str], Form]]] = {
    "json_schema": lambda schema: {"type": "json_schema", "json_schema": json.loads(schema)},
    "regex": lambda pattern: {"type": "regex", "pattern": pattern},
    "ebnf": lambda grammar: {"type": "grammar", "grammar": grammar},
}
"""By SGLang's sampling parameter. A `structural_tag` of the request's is of its whole reply."""

_CHATML = ThoughtSyntax(("<|im_start|>",), gap="\n\n")
_GLM = ThoughtSyntax(("<|assistant|>",))
_LAGUNA = ThoughtSyntax(("<assistant>",), kept_out=("<tool_call>", "</tool_call>"))
_DEEPSEEK = ThoughtSyntax(("<\uff5cAssistant\uff5c>", "<\uff5ctool\u2581outputs\u2581end\uff5c>"), gap="\n\n")
_SYNTAXES: Final = {
    **dict.fromkeys(("qwen3", "qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8"), _CHATML),
    **dict.fromkeys(("prime-qwen3", "nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), replace(_CHATML, gap="\n")),
    # Without a mark it reads all as reasoning.
    "glm-4.5": replace(_GLM, lead="\n", gap="\n", optional=False),
    **dict.fromkeys(("glm-5", "glm-5.1", "glm-5.3"), _GLM),
    **dict.fromkeys(("deepseek-v3", "deepseek-r1"), _DEEPSEEK),
    "deepseek-v4": replace(_DEEPSEEK, gap="", kept_out=("\uff5cDSML\uff5c",)),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), ThoughtSyntax(("<|im_assistant|>",))),
    "minimax-m2": ThoughtSyntax(("]~b]",), gap="\n\n"),
    "hy3": ThoughtSyntax(
        ("<\uff5chy_Assistant:opensource\uff5c>",), marks=("<think:opensource>", "</think:opensource>")
    ),
    **dict.fromkeys(("laguna-xs.2", "laguna-m.1"), replace(_LAGUNA, gap="\n")),
    **dict.fromkeys(("laguna-s-2.1", "laguna-xs-2.1"), _LAGUNA),
    "gemma4": ThoughtSyntax(
        ("<|turn>", "<tool_response|>"),
        marks=("<|channel>", "<channel|>"),
        named="thought\n",
        kept_out=("<|tool_call>", "<tool_call|>"),
    ),
    "gpt-oss": ThoughtSyntax(
        marks=("<|message|>", "<|end|>"),
        then=("<|start|>", "assistant", "<|channel|>", "final", "<|message|>"),
        kept_out=("<|start|>", "<|channel|>"),
    ),
    "inkling": ThoughtSyntax(
        ("<|message_model|>",),
        marks=("<|content_thinking|>", "<|end_message|>"),
        then=("<|message_model|>", "<|content_text|>"),
        kept_out=(
            *("<|message_model|>", "<|content_text|>"),
            *("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"),
        ),
    ),
}
