"""What a page of a conversation shows of a turn's tokens is what the turn has, wherever the page begins and ends."""

from functools import partial

import numpy as np
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.store.annotations import Annotations, Series, annotate
from rolloutfleet_proxy.store.conversations import load_shape, load_tokens

PROMPT = [10, 11, 12]
OUTPUT = [20, 21, 22, 23]
LOGPROBS = [-0.5, -1.0, -1.5, -2.0]
VERSIONS = [(3, 1), (4, 2), (6, 1)]
VERSION_OF_EACH = [3, 4, 4, 6]
ADVANTAGES = [0.25, 0.5, 0.75, 1.0]


def test_each_piece_of_a_turn_has_what_belongs_to_its_own_tokens(store: SyncStore) -> None:
    [(session, _)] = store.start()
    number = store.commit(
        session, name="turn", prompt=PROMPT, output=OUTPUT, logprobs=LOGPROBS, versions=VERSIONS, run=0
    )
    series = Series("turn", "advantages", np.array(ADVANTAGES, np.float32).tobytes())
    store.run(lambda transaction: annotate(transaction, session, Annotations([series], {})))
    shape = store.read(partial(load_shape, session=session, number=number))
    total = len(PROMPT) + len(OUTPUT)
    for start in range(total + 1):
        for most in range(total + 1):
            part = store.read(partial(load_tokens, session=session, shape=shape, start=start, most=most))
            first, last = (max(0, place - len(PROMPT)) for place in (start, start + most))
            assert part.prompt_ids.tolist() == PROMPT[start : start + most], (start, most)
            assert part.output_ids.tolist() == OUTPUT[first:last], (start, most)
            assert part.logprobs.tolist() == LOGPROBS[first:last], (start, most)
            assert part.versions == VERSION_OF_EACH[first:last], (start, most)
            assert part.annotations["advantages"].tolist() == ADVANTAGES[first:last], (start, most)
