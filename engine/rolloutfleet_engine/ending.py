"""Where an answer ends: an end token, a stop string or pattern, or the limit, in the order in which SGLang looks."""

import re
from collections.abc import Sequence
from typing import Any

from rolloutfleet_engine.model import Model
from rolloutfleet_engine.requests import SamplingParams

FinishReason = dict[str, Any]


def end_of(
    ids: Sequence[int], *, limit: int, sampling: SamplingParams, model: Model
) -> tuple[Sequence[int], FinishReason]:
    """The tokens of `ids` that are made, the one that ends them included, and the finish reason.

    `ignore_eos` ignores `stop_token_ids` too, and a stop string goes before an end token at the same place: so does
    SGLang 0.5.23 (`srt/managers/schedule_batch.py`, `update_finish_state`).
    """
    made = ids[:limit]
    text_ends = (
        first_stop_string(made, sampling.stops(), model),
        first_stop_pattern(made, sampling.stop_patterns(), model),
    )
    text_end = min(filter(None, text_ends), key=lambda end: end[0], default=None)
    token_end = None if sampling.ignore_eos else first_of(made, model.end_ids.union(sampling.stop_token_ids or ()))
    if text_end is not None and (token_end is None or text_end[0] <= token_end):
        place, text = text_end
        return made[: place + 1], {"type": "stop", "matched": text}
    if token_end is not None:
        return made[: token_end + 1], {"type": "stop", "matched": made[token_end]}
    return made, {"type": "length", "length": limit}


def first_of(ids: Sequence[int], wanted: frozenset[int]) -> int | None:
    return next((place for place, token_id in enumerate(ids) if token_id in wanted), None)


def first_stop_string(ids: Sequence[int], stops: Sequence[str], model: Model) -> tuple[int, str] | None:
    """The place of the token with which the first stop string is complete, and that string."""
    whole = model.decode(ids, skip_special_tokens=False)
    if not any(stop in whole for stop in stops):
        return None
    for place in range(len(ids)):
        text = model.decode(ids[: place + 1], skip_special_tokens=False)
        for stop in stops:
            if stop in text:
                return place, stop
    return None


def first_stop_pattern(ids: Sequence[int], patterns: Sequence[str], model: Model) -> tuple[int, str] | None:
    """The place of the token at which a pattern is first found, and that pattern. One that is tied to the end of the
    text may be found there though it isn't later."""
    for place in range(len(ids) if patterns else 0):
        text = model.decode(ids[: place + 1], skip_special_tokens=False)
        for pattern in patterns:
            if re.search(pattern, text):
                return place, pattern
    return None


def shown_text(ids: Sequence[int], finish: FinishReason | None, sampling: SamplingParams, model: Model) -> str:
    """The text of an answer: without its end token or stop string unless `no_stop_trim`. SGLang looks for a pattern's
    own letters as if it were a stop string, so what a pattern matched stays unless that is the pattern itself.

    An unfinished answer keeps back the bytes of a character that is not whole yet.
    """
    skip = sampling.skip_special_tokens is not False
    matched = finish.get("matched") if finish else None
    if isinstance(matched, int) and not sampling.no_stop_trim:
        ids = ids[:-1]
    text = model.decode(ids, skip_special_tokens=skip)
    if isinstance(matched, str) and matched in text:
        place = text.index(matched)
        return text[: place + len(matched)] if sampling.no_stop_trim else text[:place]
    return text if finish else text.rstrip("\ufffd")
