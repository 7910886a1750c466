"""What follows a reply that ended its turn in an open thought: with an end token, and without the mark that ends it.

The bridges of `renderers` 0.1.12 refuse such a reply, and most formats drop its reasoning where they render it anew, so
the next turn would begin a branch. What a format writes behind an end token is the same whether a thought before it was
ended or not. So the bridge is shown the reply as if it were, and only what it adds is taken: to the prompt nothing is
added that the model did not sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rolloutfleet_proxy.tokens.vocabulary import Vocabulary

_ENDS: Final = {
    "gemma4": "<channel|>",
    "gpt-oss": "<|end|>",
    "hy3": "</think:opensource>",
    "inkling": "<|end_message|>",
}
"""What ends a thought, by the format; `</think>` in all others."""
_TURN_ENDS: Final = {"gemma4": "<turn|>"}
"""The one end token that a format's bridge goes on from, where it refuses its others."""


def is_open(renderer: Any, tail: list[int], packed: list[int], tools: Sequence[Any] | None) -> bool:
    """Whether a packed reply to a prompt that ends in `tail` stops within a thought."""
    parsed = renderer.parse_response(packed, tools=tools, prompt_ids=tail)
    return parsed.reasoning_complete is False


def ended(name: str, packed: list[int], vocabulary: Vocabulary) -> list[int]:
    """The packed reply, whose last token ends its turn, with its thought ended before that."""
    end = _TURN_ENDS.get(name)
    turn_end = packed[-1:] if end is None else [vocabulary.convert_tokens_to_ids(end)]
    return [*packed[:-1], *_tokens(_ENDS.get(name, "</think>"), vocabulary), *turn_end]


def _tokens(mark: str, vocabulary: Vocabulary) -> list[int]:
    token_id = vocabulary.convert_tokens_to_ids(mark)
    return vocabulary.encode(mark, add_special_tokens=False) if token_id is None else [token_id]
