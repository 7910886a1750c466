"""Scores of rows by a simulated engine: which tokens, how many at once, sent again when, and refused when."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tests.unit import web_apps
from tests.unit.client.fleet.rows import turn
from tests.unit.engine.serving import engine_here

from rolloutfleet.fleet import BadArgument, FleetError, Refused
from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.scoring import scored
from rolloutfleet.tensors import RemoteTensor
from rolloutfleet.wire import Sampled
from rolloutfleet_engine.options import EngineOptions

URL = "http://127.0.0.1:31000"


def row(ids: list[int], mask: list[int], *temperatures: float | None, turn_ids: list[int] | None = None) -> Row:
    """Of turns that were sampled so, the trained tokens of the first unless `turn_ids` says more."""
    turns = tuple(
        turn(f"t{number}").model_copy(update={"sampling": Sampled(temperature=temperature)})
        for number, temperature in enumerate(temperatures or (1.0,))
    )
    of_turns = turn_ids or [0 if trained else -1 for trained in mask]
    tensors: dict[str, Any] = {
        "input_ids": np.array(ids, np.int64),
        "loss_mask": np.array(mask, np.uint8),
        "turn_ids": np.array(of_turns, np.int32),
    }
    return Row((), None, tensors, turns=turns)


def simulated(token: int) -> float:
    """What the simulated engine says of a prompt's token."""
    return -float(token % 64) / 16


async def test_trained_tokens_get_their_log_probabilities_and_others_zero() -> None:
    rows = [row([5, 6, 7, 8, 9, 10], [0, 0, 1, 0, 1, 0]), row([70, 71], [0, 1]), row([3, 4], [0, 0])]
    async with engine_here(EngineOptions(), port=31000):
        first, second, third = await scored(rows, URL + "/")
    assert first.dtype == np.float32
    assert first.tolist() == [0, 0, simulated(7), 0, simulated(9), 0]
    assert second.tolist() == [0, simulated(71)]
    assert third.tolist() == [0, 0]


@asynccontextmanager
async def stub(*answers: Any) -> AsyncIterator[tuple[str, list[web.Request], list[Any]]]:
    """An engine that answers so, the last one again and again: a status, or what it says of the input's tokens."""
    seen: list[web.Request] = []
    bodies: list[Any] = []
    left = list(answers)

    async def generate(request: web.Request) -> web.Response:
        seen.append(request)
        bodies.append(json.loads(await request.read()))
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "no"}}, status=answer)
        return web.json_response({"meta_info": answer})

    app = web.Application()
    app.router.add_post("/generate", generate)
    async with web_apps.serving(app) as url:
        yield url, seen, bodies


GOOD = {"input_token_logprobs": [[None, 6, None], [-0.5, 7, None]], "finish_reason": {"type": "length"}}
ONE = row([5, 6, 7, 8], [0, 0, 1, 0])


async def test_nothing_is_sampled_and_only_what_is_needed_is_scored() -> None:
    async with stub(GOOD) as (url, seen, bodies):
        await scored([ONE], url, api_key="k")
        await scored([ONE], url)
    assert seen[0].headers["authorization"] == "Bearer k" and "authorization" not in seen[1].headers
    caches = {body.pop("extra_key") for body in bodies}
    assert len(caches) == 2, "what older weights left in a cache is never met"
    assert bodies[0] == {
        "input_ids": [5, 6, 7],
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 1,
    }


ABORTED = {"input_token_logprobs": [], "finish_reason": {"type": "abort"}}


@pytest.mark.parametrize("answers", [(503, 429, GOOD), (500, ABORTED, GOOD)])
async def test_an_engine_that_fails_or_is_paused_is_asked_again(answers: tuple[Any, ...]) -> None:
    async with stub(*answers) as (url, seen, _):
        [found] = await scored([ONE], url)
    assert found.tolist() == [0, 0, -0.5, 0] and len(seen) == 3


@pytest.mark.parametrize(("answer", "calls"), [(400, 1), (401, 1), (500, 3)])
async def test_a_refusal_is_not_repeated_and_an_error_only_so_often(answer: int, calls: int) -> None:
    async with stub(answer) as (url, seen, _):
        with pytest.raises(Refused) as refused:
            await scored([ONE], url, retries=2)
    assert (refused.value.status, len(seen)) == (answer, calls)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"input_token_logprobs": [[None, 6, None]]},
        {"input_token_logprobs": [[None, 6, None], [-0.5, 9, None]]},
        {"input_token_logprobs": [[None, 6, None], [None, 7, None]]},
    ],
)
async def test_an_answer_that_lacks_a_trained_token_is_an_error(meta: dict[str, Any]) -> None:
    async with stub(meta) as (url, _, _):
        with pytest.raises(FleetError, match=r"rows\[0\]|does not answer"):
            await scored([ONE], url)


async def test_no_more_rows_than_said_are_scored_at_once() -> None:
    at_once = most = 0

    async def generate(_: web.Request) -> web.Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(1)
        at_once -= 1
        return web.json_response({"meta_info": GOOD})

    app = web.Application()
    app.router.add_post("/generate", generate)
    async with web_apps.serving(app) as url:
        assert len(await scored([ONE] * 9, url, concurrency=3)) == 9
    assert most == 3


@pytest.mark.parametrize("held", [{"constrained": "ebnf"}, {"biased_by": ["logit_bias"]}])
async def test_a_turn_under_a_grammar_or_a_bias_is_named_before_anything_is_asked(held: dict[str, Any]) -> None:
    one = row([1, 2, 3], [0, 1, 1], 1.0, 1.0, turn_ids=[-1, 0, 1])
    turns = (one.turns[0], one.turns[1].model_copy(update=held))
    with pytest.raises(BadArgument, match=r"rows\[0\]: turn t1 was sampled under a grammar or a bias"):
        await scored([replace(one, turns=turns)], URL)


async def test_a_turn_of_another_temperature_is_named_before_anything_is_asked() -> None:
    cold = row([1, 2, 3], [0, 1, 1], 1.0, 0.7, turn_ids=[-1, 0, 1])
    with pytest.raises(BadArgument, match=r"rows\[1\]: turn t1 was sampled at temperature 0.7"):
        await scored([ONE, cold], URL)
    unknown = Row((), None, ONE.tensors, turns=(turn("old"),))
    with pytest.raises(BadArgument, match="turn old was sampled at temperature unknown"):
        await scored([unknown], URL)
    context = row([1, 2, 3], [0, 0, 1], 0.7, 1.0, turn_ids=[-1, -1, 1])
    unsaid = row([5, 6, 7, 8], [0, 0, 1, 0], None)
    async with engine_here(EngineOptions(), port=31000):
        assert len(await scored([context, unsaid], URL)) == 2


async def test_references_are_to_be_fetched_first() -> None:
    reference = RemoteTensor("t0-x", "http://proxy", (3,), "int64")
    with pytest.raises(BadArgument, match="localize"):
        await scored([Row((), None, {"input_ids": reference})], URL)
