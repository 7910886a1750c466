"""What follows a reply that ended its turn in an open thought: with an end token, and without the mark that ends it.

The bridges of `renderers` 0.1.12 refuse such a reply, and most formats drop its reasoning where they render it anew, so
the next turn would begin a branch. What a format writes behind an end token is the same whether a thought before it was
ended or not. So the bridge is shown the reply as if it were, and only what it adds is taken: to the prompt nothing is
added that the model did not sample.
"""

from __future__ import annotations

from rolloutfleet_proxy.tokens.call_syntax import Syntax
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary


def ended(syntax: Syntax, packed: list[int], vocabulary: Vocabulary) -> list[int]:
    """The packed reply, whose last token ends its turn, with its thought ended before that."""
    _, mark = syntax.think or ("", "")
    turn_end = [vocabulary.convert_tokens_to_ids(syntax.turn_end)] if syntax.turn_end else packed[-1:]
    return [*packed[:-1], *vocabulary.encode(mark, add_special_tokens=False), *turn_end]
