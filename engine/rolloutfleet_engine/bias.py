"""What `logit_bias` makes of a draft.

The simulated engine has no logits. It takes them to be 0, but for each token of the draft, which stands `DRAFT_LOGIT`
above the others: what is biased further than that comes instead, and what is biased away gives place to another token.
"""

import random
from collections.abc import Mapping, Sequence
from functools import cached_property

from rolloutfleet_engine.model import Model

DRAFT_LOGIT = 10.0


class Bias:
    def __init__(self, given: Mapping[str, float] | None, model: Model) -> None:
        self._added = {int(token_id): value for token_id, value in (given or {}).items()}
        self._model = model
        self._most = max(self._added.values(), default=0.0)

    def lets(self, token_id: int) -> bool:
        """Whether a token comes where the draft has it."""
        return self._added.get(token_id, 0.0) + DRAFT_LOGIT >= max(self._most, 0.0)

    def applied(self, ids: Sequence[int], *, key: bytes) -> list[int]:
        """The tokens that come in place of these; each place by itself, so that a longer draft begins the same."""
        if not self._added:
            return list(ids)
        return [each if self.lets(each) else self._instead(place, key) for place, each in enumerate(ids)]

    def _instead(self, place: int, key: bytes) -> int:
        return random.Random(key + place.to_bytes(4)).choice(self._likeliest)

    @cached_property
    def _likeliest(self) -> list[int]:
        """The tokens that come where the draft's doesn't."""
        untouched = set(range(self._model.vocabulary_size)) - self._added.keys() - self._model.special_ids
        if self._most > 0 or not untouched:
            return [token_id for token_id, value in self._added.items() if value == self._most]
        return sorted(untouched)
