"""What a request to an engine is made of."""

import json
import tracemalloc
from array import array

from rolloutfleet_proxy.engine.request import GenerateRequest, extended_json, ids_json


def test_a_prompt_is_sent_as_it_is_kept() -> None:
    prompt = ids_json(array("i", range(100_000, 101_000)))
    request = GenerateRequest(
        rid="turn-1", routing_key="s-1", prompt_json=prompt, prompt_tokens=1_000, max_new_tokens=8, top_logprobs=2
    )
    assert any(piece is prompt for piece in request.body(stream=True))
    assert json.loads(b"".join(request.body(stream=True))) == {
        "rid": "turn-1",
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 2,
        "sampling_params": {"max_new_tokens": 8},
        "input_ids": [*range(100_000, 101_000)],
    }


def test_what_is_kept_of_a_prompt_takes_no_more_than_its_text() -> None:
    for count in (1, 100, 1_500, 40_000):
        ids = array("i", range(100_000, 100_000 + count))
        # Other threads of this process may allocate meanwhile, but not each time.
        assert min(memory_beyond_its_text(ids) for _ in range(5)) < 256


def memory_beyond_its_text(ids: "array[int]") -> int:
    """Bytes that are taken once they are JSON, less the length of that."""
    tracemalloc.start()
    try:
        kept = ids_json(ids)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return taken - len(kept)


def test_a_prompts_json_grows_with_its_ids() -> None:
    assert extended_json(b"[]", [3]) == b"[3]"
    assert extended_json(b"[1,2]", []) == b"[1,2]"
    assert extended_json(b"[1,2]", array("i", [3, 4])) == b"[1,2,3,4]"
