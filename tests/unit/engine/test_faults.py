"""Every kind of misbehaviour, as it looks to the caller."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.waiting import PATIENCE

from rolloutfleet_engine import faults
from rolloutfleet_engine.faults import KINDS, LOAD_FAULTS, SPOILERS, Fault


@pytest.fixture(autouse=True)
def small_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of them take seconds."""
    monkeypatch.setattr(faults, "ROUTED_EXPERTS_BYTES", 1_000_000)


def last_reply(text: str, *, stream: bool) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(text.strip().split("\n\n")[-2].removeprefix("data: ") if stream else text)
    return reply


def spoiled(kind: str, reply: dict[str, Any]) -> bool:
    """Whether the reply shows the fault."""
    meta = reply.get("meta_info", {})
    ids = reply.get("output_ids", [])
    logprobs = meta.get("output_token_logprobs", [])
    last: list[Any] = logprobs[-1] if logprobs else [None, None, None]
    tests: dict[str, Callable[[], bool]] = {
        "wrong_length": lambda: len(logprobs) == len(ids) - 1,
        "extra_logprob": lambda: len(logprobs) == len(ids) + 1,
        "nan": lambda: math.isnan(last[0]),
        "null_logprob": lambda: last[0] is None,
        "infinity": lambda: last[0] == -math.inf,
        "sentinel": lambda: last[0] == -9999.0,
        "positive": lambda: last[0] > 0,
        "bool": lambda: last[0] is True,
        "string_logprob": lambda: isinstance(last[0], str),
        "other_id_in_logprobs": lambda: last[1] != ids[-1],
        "bad_id": lambda: ids[-1] == last[1] == -1,
        "huge_id": lambda: ids[-1] == last[1] == 2**40,
        "bool_id": lambda: ids[-1] is True,
        "missing_ids": lambda: "output_ids" not in reply,
        "missing_logprobs": lambda: "output_token_logprobs" not in meta,
        "missing_meta": lambda: "meta_info" not in reply,
        "missing_finish_reason": lambda: "finish_reason" not in meta,
        "unknown_finish_reason": lambda: meta["finish_reason"] == {"type": "mystery"},
        "missing_version": lambda: "weight_version" not in meta and "weight_versions" not in meta,
        "routed_experts": lambda: len(meta["routed_experts"]) == faults.ROUTED_EXPERTS_BYTES,
        "cached": lambda: meta["cached_tokens"] == 12,
        "missing_cached_tokens": lambda: "cached_tokens" not in meta,
        "wrong_count": lambda: meta["completion_tokens"] == len(ids) + 1,
    }
    return tests[kind]()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", SPOILERS)
async def test_spoiled_replies(engine: Callable[..., Any], prompt: list[int], kind: str, stream: bool) -> None:
    asker = engine(faults=[Fault(kind=kind, after_tokens=10_000)])
    answer = await asker.post("/generate", **asker.body(prompt, stream=stream))
    assert answer.status_code == 200
    assert spoiled(kind, last_reply(answer.text, stream=stream))
    again = await asker.post("/generate", **asker.body(prompt, stream=stream))
    clean = last_reply(again.text, stream=stream)
    assert len(clean["meta_info"]["output_token_logprobs"]) == len(clean["output_ids"])
    counters = await asker.counters()
    assert (counters["faults"], counters["finished"], counters["faults_by_kind"]) == (1, 1, {kind: 1})


async def test_a_stream_is_right_until_the_fault(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="nan", after_tokens=5)])
    events = [event async for event in asker.events(prompt)]
    for event in events[:-1]:
        reply = json.loads(event)
        values = [value for value, _, _ in reply["meta_info"]["output_token_logprobs"]]
        assert math.isnan(values[-1]) == (len(values) > 5)


@pytest.mark.parametrize(("kind", "status"), [("error_500", 500), ("error_429", 429), ("error_503", 503)])
async def test_http_errors(engine: Callable[..., Any], prompt: list[int], kind: str, status: int) -> None:
    asker = engine(faults=[Fault(kind=kind, count=2)])
    for stream in (False, True):
        answer = await asker.post("/generate", **asker.body(prompt, stream=stream))
        assert answer.status_code == answer.json()["code"] == status
    assert (await asker.generate(prompt))["output_ids"]


async def test_context_length(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="context_length")])
    answer = await asker.post("/generate", **asker.body(prompt))
    assert answer.status_code == 400
    assert "longer than the model's context length" in answer.json()["error"]["message"]
    assert (await asker.counters())["faults"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bare_abort(engine: Callable[..., Any], prompt: list[int], stream: bool) -> None:
    asker = engine(faults=[Fault(kind="bare_abort", after_tokens=7)])
    answer = await asker.post("/generate", **asker.body(prompt, stream=stream))
    reply = last_reply(answer.text, stream=stream)
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    assert reply["meta_info"]["finish_reason"]["status_code"] is None
    assert len(reply["output_ids"]) == 7


async def test_an_abort_with_a_status(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="abort_with_status", after_tokens=7, status=503, message="gone", count=2)])
    answer = await asker.post("/generate", **asker.body(prompt))
    assert (answer.status_code, answer.json()["message"]) == (503, "gone")
    streamed = last_reply((await asker.post("/generate", **asker.body(prompt, stream=True))).text, stream=True)
    assert streamed["meta_info"]["finish_reason"]["status_code"] == 503
    assert len(streamed["output_ids"]) == 7


async def test_a_cut_stream(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="cut_stream", after_tokens=7)])
    events = []
    with pytest.raises(httpx.RemoteProtocolError):
        async for event in asker.events(prompt):
            events.append(json.loads(event))
    assert [len(event["output_ids"]) for event in events] == list(range(1, 8))
    assert events[-1]["meta_info"]["finish_reason"] is None


async def test_a_cut_answer(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="cut_stream")])
    with pytest.raises(httpx.RemoteProtocolError):
        await asker.generate(prompt)


@pytest.mark.parametrize("stream", [False, True])
async def test_garbage(engine: Callable[..., Any], prompt: list[int], stream: bool) -> None:
    asker = engine(faults=[Fault(kind="garbage_json", after_tokens=3)])
    answer = await asker.post("/generate", **asker.body(prompt, stream=stream))
    assert answer.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        last_reply(answer.text, stream=stream)


async def test_never(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="never", after_tokens=4)])
    events = asker.events(prompt, rid="stuck")
    seen = [len(json.loads(await anext(events))["output_ids"]) for _ in range(4)]
    assert seen == [1, 2, 3, 4]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await anext(events)
    async with asyncio.timeout(PATIENCE):
        while (await asker.counters())["running"]:
            await asyncio.sleep(0.01)
    assert (await asker.counters())["aborted_by_caller"] == 1


async def test_slow(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="slow", seconds=2)])
    assert (await asker.generate(prompt))["meta_info"]["e2e_latency"] >= 2
    assert (await asker.generate(prompt))["meta_info"]["e2e_latency"] < 2


async def test_the_queue_over_http(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine()
    queued = await asker.http.post("/faults", json=[{"kind": "error_500", "rid": "a"}, {"kind": "error_503"}])
    assert [fault["kind"] for fault in queued.json()["faults"]] == ["error_500", "error_503"]
    assert (await asker.post("/generate", **asker.body(prompt, rid="b-1"))).status_code == 503
    assert (await asker.post("/generate", **asker.body(prompt, rid="b-2"))).status_code == 200
    assert (await asker.post("/generate", **asker.body(prompt, rid="a-1"))).status_code == 500
    assert (await asker.post("/faults", kind="nan", count=3)).json()["faults"][0]["count"] == 3
    assert (await asker.http.delete("/faults")).json() == {"faults": []}
    assert (await asker.post("/faults", kind="unheard_of")).status_code == 400
    assert (await asker.post("/faults", kind="nan", count=0)).status_code == 400


async def test_calls_are_counted_once(engine: Callable[..., Any], prompt: list[int]) -> None:
    kinds = [kind for kind in KINDS if kind not in ("never", "slow", "cut_stream", *LOAD_FAULTS)]
    asker = engine(faults=[Fault(kind=kind, after_tokens=3) for kind in kinds])
    for _ in range(len(kinds) + 2):
        await asker.post("/generate", **asker.body(prompt))
    counters = await asker.counters()
    assert counters["received"] == len(kinds) + 2
    assert (counters["faults"], counters["finished"]) == (len(kinds), 2)


async def test_a_load_fails_and_changes_no_weights_where_asked(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(weight_version="1", faults=[Fault(kind="load_fails", message="no such file")])
    assert (await asker.generate(prompt))["meta_info"]["weight_version"] == "1"
    refused = await asker.post("/update_weights_from_disk", model_path="x", weight_version="2")
    assert (refused.status_code, refused.json()["success"]) == (400, False)
    assert refused.json()["message"] == "no such file"
    assert (await asker.generate(prompt))["meta_info"]["weight_version"] == "1"
    assert (await asker.post("/update_weights_from_disk", model_path="x", weight_version="2")).json()["success"]
    assert (await asker.generate(prompt))["meta_info"]["weight_version"] == "2"
