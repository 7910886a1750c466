"""Pauses in three modes, weight updates, and the version of each token."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_engine.faults import Fault

LONG = {"max_new_tokens": 120, "ignore_eos": True}
LONGER = {"max_new_tokens": 350, "ignore_eos": True}
"""More tokens than are made until the last of what is asked for meanwhile."""
ENDLESS = {"max_new_tokens": 5000, "ignore_eos": True}


class Streamed:
    """A streamed call, read in the background."""

    def __init__(self, events: AsyncIterator[str]) -> None:
        self.replies: list[dict[str, Any]] = []
        self._grown = asyncio.Condition()
        self.task = asyncio.create_task(self._read(events))

    async def _read(self, events: AsyncIterator[str]) -> dict[str, Any]:
        async for event in events:
            if event != "[DONE]":
                async with self._grown:
                    self.replies.append(json.loads(event))
                    self._grown.notify_all()
        return self.replies[-1]

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self._grown:
            await self._grown.wait_for(lambda: bool(self.replies) and len(self.replies[-1]["output_ids"]) >= count)


def check_spans(reply: dict[str, Any], versions: list[str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = reply["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == versions
    assert spans[0]["start"] == 0
    assert spans[-1]["end"] == len(reply["output_ids"])
    assert all(before["end"] == after["start"] for before, after in itertools.pairwise(spans))
    assert reply["meta_info"]["weight_version"] == versions[-1]
    return spans


async def test_abort_gives_back_the_part_and_the_rest_comes_with_the_new_version(
    engine: Callable[..., Any], prompt: list[int]
) -> None:
    # By itself it goes no further, however late the pause comes.
    stuck = Fault(kind="never", after_tokens=10)
    asker = engine(token_latency=0.005, weight_version="1", faults=[stuck])
    asked = Streamed(asker.events(prompt, sampling_params=LONG))
    await asked.reaches(10)
    paused = await asker.post("/pause_generation", mode="abort")
    assert paused.json() == {"message": "Generation paused successfully.", "status": "ok"}
    part = await asked.task
    assert part["meta_info"]["finish_reason"]["type"] == "abort"
    check_spans(part, ["1"])
    updated = await asker.post("/update_weights_from_disk", model_path="x", weight_version="2")
    assert updated.json() == {
        "success": True,
        "message": "Succeeded to update model weights. Weight version updated to 2.",
        "num_paused_requests": 0,
    }

    again = [*prompt, *part["output_ids"]]
    budget = {**LONG, "max_new_tokens": 120 - len(part["output_ids"])}
    held = asyncio.create_task(asker.generate(again, sampling_params=budget))
    async with asyncio.timeout(PATIENCE):
        while (await asker.counters())["held"] != 1:
            await asyncio.sleep(0.01)
    assert (await asker.http.get("/v1/loads")).json()["loads"][0]["num_running_reqs"] == 0
    assert (await asker.post("/continue_generation")).json()["status"] == "ok"
    rest = await held
    check_spans(rest, ["2"])

    uncut = await engine(weight_version="1").generate(prompt, sampling_params=LONG)
    assert part["output_ids"] + rest["output_ids"] == uncut["output_ids"]
    logprobs = uncut["meta_info"]["output_token_logprobs"]
    count = len(part["output_ids"])
    assert part["meta_info"]["output_token_logprobs"] == logprobs[:count]
    assert all(
        new[0] != old[0] for new, old in zip(rest["meta_info"]["output_token_logprobs"], logprobs[count:], strict=True)
    )


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_the_same_call_goes_on_with_the_new_version(
    engine: Callable[..., Any], prompt: list[int], mode: str
) -> None:
    asker = engine(token_latency=0.02, weight_version="1")
    asked = Streamed(asker.events(prompt, sampling_params=LONGER))
    await asked.reaches(10)
    await asker.post("/pause_generation", mode=mode)
    load = (await asker.http.get("/v1/loads")).json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == ((0, 1) if mode == "retract" else (1, 0))
    emptied = await asker.post("/flush_cache")
    assert emptied.status_code == (200 if mode == "retract" else 400)
    flushed = await asker.post("/update_weights_from_disk", model_path="x", weight_version="2", flush_cache=True)
    assert flushed.status_code == (200 if mode == "retract" else 400)
    stood = len(asked.replies[-1]["output_ids"])
    await asker.post("/continue_generation")
    reply = await asked.task
    spans = check_spans(reply, ["1", "2"])
    assert spans[0]["end"] in (stood, stood + 1)
    assert reply["meta_info"]["num_retractions"] == (mode == "retract")
    assert reply["output_ids"] == (await engine().generate(prompt, sampling_params=LONGER))["output_ids"]
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 350}


async def test_a_call_that_is_not_streamed_gets_its_spans_too(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(token_latency=0.02, weight_version="1")
    watched = Streamed(asker.events(prompt, sampling_params=LONGER))
    asked = asyncio.create_task(asker.generate(prompt, sampling_params=LONGER))
    await watched.reaches(10)
    await asker.post("/update_weight_version", new_version="2", abort_all_requests=False)
    check_spans(await watched.task, ["1", "2"])
    reply = await asked
    check_spans(reply, ["1", "2"])
    (entry, _) = sorted(await asker.log(), key=lambda entry: entry["stream"])
    assert [span[0] for span in entry["weight_versions"]] == ["1", "2"]


async def test_a_new_version_aborts_by_default(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(token_latency=0.01, weight_version="1")
    asked = Streamed(asker.events(prompt, sampling_params=ENDLESS))
    await asked.reaches(5)
    answer = await asker.post("/update_weight_version", new_version="2")
    assert answer.json() == {"success": True, "message": "Weight version updated to 2", "new_version": "2"}
    check_spans(await asked.task, ["1"])
    assert (await asker.http.get("/model_info")).json()["weight_version"] == "2"


async def test_weights_wait_for_calls_unless_paused(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(token_latency=0.002, weight_version="1")
    asked = Streamed(asker.events(prompt, sampling_params=LONG))
    await asked.reaches(3)
    updated = await asker.post("/update_weights_from_disk", model_path="x", weight_version="2")
    assert updated.status_code == 200
    check_spans(await asked.task, ["1"])
    check_spans(await asker.generate(prompt), ["2"])


async def test_a_retracted_call_is_aborted_from_the_queue(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(token_latency=0.005)
    asked = Streamed(asker.events(prompt, rid="queued", sampling_params=ENDLESS))
    await asked.reaches(5)
    await asker.post("/pause_generation", mode="retract")
    await asker.post("/abort_request", rid="queued")
    meta = (await asked.task)["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert "prompt_tokens" not in meta
    assert meta["completion_tokens"] == len(meta["output_token_logprobs"]) >= 5


async def test_a_frozen_call_is_aborted_when_it_goes_on(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(token_latency=0.005)
    asked = Streamed(asker.events(prompt, rid="frozen", sampling_params=ENDLESS))
    await asked.reaches(5)
    await asker.post("/pause_generation", mode="in_place")
    await asker.post("/abort_request", rid="frozen")
    assert (await asker.counters())["running"] == 1
    await asker.post("/continue_generation")
    assert (await asked.task)["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_held_caller_may_leave(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine()
    await asker.post("/pause_generation", mode="retract")
    asking = asyncio.create_task(asker.generate(prompt))
    async with asyncio.timeout(PATIENCE):
        while (await asker.counters())["held"] != 1:
            await asyncio.sleep(0.01)
        asking.cancel()
        while (await asker.counters())["held"]:
            await asyncio.sleep(0.01)
    assert (await asker.counters())["aborted_by_caller"] == 1


async def test_a_pause_makes_the_health_check_fail(engine: Callable[..., Any]) -> None:
    asker = engine(health_timeout=0.2)
    await asker.post("/pause_generation")
    assert (await asker.http.get("/health")).status_code == 503
    await asker.post("/continue_generation")
    assert (await asker.http.get("/health")).status_code == 200


async def test_an_unknown_mode_is_refused(engine: Callable[..., Any]) -> None:
    assert (await engine().post("/pause_generation", mode="gently")).status_code == 400


async def test_a_paused_engine_says_that_it_takes_no_requests(engine: Callable[..., Any]) -> None:
    asker = engine()
    assert (await asker.http.get("/ready")).status_code == 200
    await asker.post("/pause_generation", mode="retract")
    paused = await asker.http.get("/ready")
    assert paused.status_code == 503
    assert paused.content == b""
    await asker.post("/continue_generation")
    assert (await asker.http.get("/ready")).status_code == 200
