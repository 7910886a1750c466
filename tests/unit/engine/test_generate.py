"""`/generate` over HTTP: same tokens for the same seed, streamed or not; endings, refusals, callers that leave."""

import asyncio
import itertools
import json
import re
import struct
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pytest
from tests.waiting import PATIENCE

from rolloutfleet_engine import call
from rolloutfleet_engine.call import top_entries
from rolloutfleet_engine.model import Model

FULL = {"max_new_tokens": 35, "ignore_eos": True}
LONG = {"max_new_tokens": 400, "ignore_eos": True}
"""Seconds of work with a slow engine."""
TIMES = ("id", "e2e_latency", "response_sent_to_client_ts")


def without_times(reply: dict[str, Any]) -> dict[str, Any]:
    return reply | {"meta_info": {name: value for name, value in reply["meta_info"].items() if name not in TIMES}}


async def test_fields_and_order_are_sglangs(engine: Callable[..., Any], prompt: list[int]) -> None:
    reply = await engine(weight_version="7").generate(prompt, rid="mine", top_logprobs_num=2)
    meta = reply["meta_info"]
    assert list(reply) == ["text", "output_ids", "meta_info"]
    assert list(meta) == [
        "id",
        "finish_reason",
        "prompt_tokens",
        "weight_version",
        "num_retractions",
        "input_token_logprobs",
        "output_token_logprobs",
        "output_token_logprobs_length",
        "input_top_logprobs",
        "output_top_logprobs",
        "reasoning_tokens",
        "completion_tokens",
        "cached_tokens",
        "weight_versions",
        "cached_tokens_details",
        "dp_rank",
        "e2e_latency",
        "response_sent_to_client_ts",
    ]
    count = len(reply["output_ids"])
    assert meta["id"] == "mine"
    assert meta["prompt_tokens"] == len(prompt)
    assert meta["completion_tokens"] == meta["output_token_logprobs_length"] == count
    assert meta["weight_version"] == "7"
    assert meta["weight_versions"] == [{"version": "7", "start": 0, "end": count}]
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[i, None] for i in reply["output_ids"]]
    assert all(
        len(top) == 2 and top[0] == own
        for top, own in zip(meta["output_top_logprobs"], meta["output_token_logprobs"], strict=True)
    )
    for value, _, _ in meta["output_token_logprobs"]:
        assert -100 < value <= 0
        assert struct.unpack("f", struct.pack("f", value))[0] == value


async def test_a_stream_makes_the_candidates_of_each_token_once(
    engine: Callable[..., Any], prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event repeats them: made anew for each, they would take time as the square of the stream's length."""
    made: list[int] = []

    def counted(entry: Any, **how: int) -> Any:
        made.append(entry[1])
        return top_entries(entry, **how)

    monkeypatch.setattr(call, "top_entries", counted)
    asker = engine()
    fields = {"sampling_params": FULL, "top_logprobs_num": 2}
    events = [json.loads(data) async for data in asker.events(prompt, **fields) if data != "[DONE]"]
    whole = await asker.generate(prompt, **fields)
    for event in events:
        meta, count = event["meta_info"], len(event["output_ids"])
        for field in ("output_token_logprobs", "output_top_logprobs"):
            assert meta[field] == whole["meta_info"][field][:count]
    assert len(events) == 35 and made == whole["output_ids"] * 2


async def test_logprobs_of_the_prompt_begin_where_asked_and_texts_stand_beside_them(
    engine: Callable[..., Any], prompt: list[int], model: Model
) -> None:
    asker = engine()
    for start, known in ((0, prompt), (len(prompt) - 3, prompt[-3:])):
        meta = (await asker.generate(prompt, logprob_start_len=start, return_text_in_logprobs=True))["meta_info"]
        inputs = meta["input_token_logprobs"]
        assert [token_id for _, token_id, _ in inputs] == known
        assert [value is None for value, _, _ in inputs] == [True, *[False] * (len(known) - 1)]
        for _, token_id, text in inputs + meta["output_token_logprobs"]:
            assert text == model.decode([token_id], skip_special_tokens=False)


async def test_same_seeds_same_answer(engine: Callable[..., Any], prompt: list[int]) -> None:
    one, two, other = engine(seed=3), engine(seed=3), engine(seed=4)
    first = await one.generate(prompt)
    assert (
        without_times(first) == without_times(await one.generate(prompt)) == without_times(await two.generate(prompt))
    )
    assert first["output_ids"] != (await other.generate(prompt))["output_ids"]
    assert first["output_ids"] != (await one.generate(prompt, sampling_params={"sampling_seed": 1}))["output_ids"]
    assert first["output_ids"] != (await one.generate([*prompt[:-3], 5, *prompt[-3:]]))["output_ids"]


async def test_ids_are_not_what_the_tokenizer_would_give(
    engine: Callable[..., Any], prompt: list[int], model: Model
) -> None:
    asker, canonical = engine(), engine(noncanonical=0.0)
    for seed in range(5):
        split = (await asker.generate(prompt, sampling_params={"sampling_seed": seed}))["output_ids"]
        text = model.decode(split, skip_special_tokens=False)
        assert model.encode(text) != split
        plain = (await canonical.generate(prompt, sampling_params={"sampling_seed": seed}))["output_ids"]
        assert model.decode(plain, skip_special_tokens=False) == text
        assert model.encode(text) == plain


@pytest.mark.parametrize("token_latency", [0.0, 0.002])
async def test_a_stream_ends_as_the_whole_answer(
    engine: Callable[..., Any], prompt: list[int], token_latency: float
) -> None:
    asker = engine(token_latency=token_latency)
    whole = await asker.generate(prompt, rid="whole")
    events = [event async for event in asker.events(prompt, rid="stream")]
    assert events.pop() == "[DONE]"
    replies = [json.loads(event) for event in events]
    assert without_times(replies[-1]) == without_times(whole)
    assert len(replies) > 10
    for before, after in itertools.pairwise(replies):
        assert before["meta_info"]["finish_reason"] is None
        assert "weight_versions" not in before["meta_info"]
        count = len(before["output_ids"])
        assert count < len(after["output_ids"])
        assert after["output_ids"][:count] == before["output_ids"]
        assert after["meta_info"]["output_token_logprobs"][:count] == before["meta_info"]["output_token_logprobs"]
        assert after["text"].startswith(before["text"])


async def test_the_first_event_comes_before_the_last_token(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(token_latency=0.5)
    async for event in asker.events(prompt):
        assert len(json.loads(event)["output_ids"]) < 5
        assert (await asker.counters())["running"] == 1
        break


async def test_stream_interval_puts_tokens_together(engine: Callable[..., Any], prompt: list[int]) -> None:
    events = [e async for e in engine().events(prompt, sampling_params={"stream_interval": 10, **FULL})]
    assert [len(json.loads(event)["output_ids"]) for event in events[:-1]] == [1, 11, 21, 31, 35]


async def test_endings(engine: Callable[..., Any], prompt: list[int], model: Model) -> None:
    asker = engine(seed=2)
    whole = await asker.generate(prompt)
    end = model.token_id("<|im_end|>")
    assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": end}
    assert whole["output_ids"][-1] == end
    assert "<|im_end|>" not in whole["text"]

    short = await asker.generate(prompt, sampling_params={"max_new_tokens": 4})
    assert short["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert short["output_ids"] == whole["output_ids"][:4]

    token = whole["output_ids"][6]
    stopped = await asker.generate(prompt, sampling_params={"stop_token_ids": [token]})
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    assert stopped["output_ids"] == whole["output_ids"][: whole["output_ids"].index(token) + 1]

    stop = whole["text"][20:26]
    cut = await asker.generate(prompt, sampling_params={"stop": [stop]})
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert stop in model.decode(cut["output_ids"])
    assert stop not in model.decode(cut["output_ids"][:-1])

    endless = await asker.generate(prompt, sampling_params={"ignore_eos": True, "max_new_tokens": 1000})
    assert len(endless["output_ids"]) == 1000
    assert endless["meta_info"]["finish_reason"] == {"type": "length", "length": 1000}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"input_ids": None}, "Either text, input_ids or input_embeds should be provided."),
        ({"input_ids": [1] * 100}, "The input (100 tokens) is longer than the model's context length (100 tokens)."),
        ({"sampling_params": {"max_new_tokens": 99}}, "You requested a total of 101 tokens: 2 tokens from the input"),
        ({"sampling_params": {"temperature": -1}}, "temperature must be a non-negative finite number, got -1.0."),
        ({"sampling_params": {"top_p": 0}}, "top_p must be in (0, 1], got 0.0."),
        ({"sampling_params": {"top_k": 0}}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"sampling_params": {"min_p": 2}}, "min_p must be in [0, 1], got 2.0."),
        ({"sampling_params": {"presence_penalty": 3}}, "presence_penalty must be in [-2, 2], got 3.0."),
        ({"sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0, got -1."),
        ({"input_ids": [5, 99999]}, "input_ids must be in [0, 2047]"),
    ],
)
async def test_refusals(engine: Callable[..., Any], fields: dict[str, Any], said: str) -> None:
    asker = engine(max_context=100)
    body = {"input_ids": [10, 11], "sampling_params": {"max_new_tokens": 5}, **fields}
    whole = await asker.post("/generate", **body)
    assert whole.status_code == 400
    assert said in whole.json()["error"]["message"]
    streamed = await asker.post("/generate", stream=True, **body)
    assert streamed.status_code == 200
    event, done = streamed.text.strip().split("\n\n")
    error = json.loads(event.removeprefix("data: "))["error"]
    assert done == "data: [DONE]"
    assert error == {**whole.json()["error"], "type": "invalid_request_error", "code": 400, "retryable": False}
    assert (await asker.counters())["refused"] == 2


async def test_refusals_of_the_parser(engine: Callable[..., Any]) -> None:
    asker = engine()
    unknown = await asker.post("/generate", input_ids=[1], sampling_params={"foo": 1})
    assert (unknown.status_code, unknown.json()["error"][:60]) == (
        400,
        "unknown field `foo`, expected one of `max_new_tokens`, `stop",
    )
    typed = await asker.post("/generate", input_ids=[1], sampling_params={"temperature": "warm"})
    assert (typed.status_code, "temperature" in typed.json()["error"]) == (400, True)
    wrong = await asker.post("/generate", input_ids="x")
    assert wrong.status_code == 400
    assert {name: wrong.json()[name] for name in ("object", "type", "code")} == {
        "object": "error",
        "type": "Bad Request",
        "code": 400,
    }
    assert (await asker.http.post("/generate", content=b"{nope")).status_code == 400
    assert (await asker.counters())["refused"] == 4


async def test_an_id_in_use_is_refused(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(latency=5)
    first = asyncio.create_task(asker.generate(prompt, rid="same"))
    await running(asker, 1)
    second = await asker.post("/generate", **asker.body(prompt, rid="same"))
    assert second.json() == {"error": {"message": "Duplicate request ID detected: same"}}
    first.cancel()


async def running(asker: Any, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await asker.counters())["running"] != count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_leaves_ends_the_work(engine: Callable[..., Any], prompt: list[int], stream: bool) -> None:
    asker = engine(token_latency=0.05)
    async with httpx.AsyncClient(base_url=asker.url) as caller:
        asking = asyncio.create_task(
            caller.post("/generate", json=asker.body(prompt, sampling_params=LONG, stream=stream))
        )
        await running(asker, 1)
        asking.cancel()
        await running(asker, 0)
    assert (await asker.counters())["aborted_by_caller"] == 1
    assert (await asker.log())[-1]["outcome"] == "aborted_by_caller"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_gives_back_the_part(engine: Callable[..., Any], prompt: list[int], stream: bool) -> None:
    asker = engine(token_latency=0.02)
    body = asker.body(prompt, rid="r-1", sampling_params=LONG, stream=stream)
    asking = asyncio.create_task(asker.post("/generate", **body))
    await running(asker, 1)
    await asker.post("/abort_request", rid="unknown")
    assert (await asker.counters())["running"] == 1
    assert (await asker.post("/abort_request", rid="r-1")).status_code == 200
    answer = (await asking).text
    reply = json.loads(answer.strip().split("\n\n")[-2].removeprefix("data: ") if stream else answer)
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert len(reply["output_ids"]) == len(meta["output_token_logprobs"]) < LONG["max_new_tokens"]
    assert (await asker.counters())["aborted_by_request"] == 1


async def test_the_log_holds_every_token_as_it_was_made(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine()
    reply = await asker.generate(prompt, rid="logged")
    (entry,) = await asker.log()
    assert entry["rid"] == "logged"
    assert entry["input_ids"] == prompt
    assert entry["output_ids"] == reply["output_ids"]
    assert entry["output_logprobs"] == [value for value, _, _ in reply["meta_info"]["output_token_logprobs"]]
    assert entry["weight_versions"] == [["default", 0, len(reply["output_ids"])]]


async def test_many_at_once(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(latency=0.5)
    # aiohttp's: to httpx, each connection costs as much more as there are others.
    async with aiohttp.ClientSession(asker.url, connector=aiohttp.TCPConnector(limit=0)) as caller:
        asking = [asyncio.ensure_future(caller.post("/generate", json=asker.body(prompt))) for _ in range(300)]
        await running(asker, 300)
        assert {(await each).status for each in asking} == {200}
    assert (await asker.counters())["finished"] == 300


async def test_information(engine: Callable[..., Any]) -> None:
    asker = engine(served_model_name="small", max_context=999)
    assert (await asker.http.get("/health")).status_code == 200
    assert (await asker.http.get("/health_generate")).status_code == 200
    assert (await asker.http.get("/v1/models")).json()["data"][0]["max_model_len"] == 999
    for path in ("/model_info", "/get_model_info"):
        assert (await asker.http.get(path)).json()["model_type"] == "qwen3"
    assert (await asker.http.get("/server_info")).json()["served_model_name"] == "small"
    assert (await asker.http.get("/v1/loads")).json()["loads"][0]["num_running_reqs"] == 0
    assert (await asker.http.get("/nothing")).json() == {"detail": "Not Found"}
    assert (await asker.http.get("/abort_request")).status_code == 405
    chat = await asker.post("/v1/chat/completions", messages=[{"role": "user", "content": "Hello?"}])
    assert chat.json()["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_pattern_ends_with_the_token_that_completes_it_and_stays_in_the_text(
    engine: Callable[..., Any], prompt: list[int], model: Model
) -> None:
    asker = engine(noncanonical=0.3)
    whole = await asker.generate(prompt)
    pattern = re.escape(whole["text"][20:23]) + "."
    cut = await asker.generate(prompt, sampling_params={"stop_regex": ["no such text", pattern]})
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": pattern}
    assert whole["output_ids"][: len(cut["output_ids"])] == cut["output_ids"] != whole["output_ids"]
    assert re.search(pattern, cut["text"])
    assert not re.search(pattern, model.decode(cut["output_ids"][:-1]))


async def test_a_token_that_is_biased_up_is_all_that_comes_and_one_that_is_biased_down_never_does(
    engine: Callable[..., Any], prompt: list[int], model: Model
) -> None:
    asker = engine()
    [end] = [end for end in model.end_ids if end == (await asker.generate(prompt))["output_ids"][-1]]
    only = await asker.generate(prompt, sampling_params={"logit_bias": {"300": 100}, "max_new_tokens": 9})
    assert only["output_ids"] == [300] * 9
    plain = await asker.generate(prompt)
    without = await asker.generate(
        prompt, sampling_params={"logit_bias": {str(each): -100 for each in plain["output_ids"]}}
    )
    assert not set(plain["output_ids"]) & set(without["output_ids"])
    assert (len(without["output_ids"]), without["meta_info"]["finish_reason"]["type"]) == (400, "length")
    ended = await asker.generate(prompt, sampling_params={"logit_bias": {str(end): 100}})
    assert ended["output_ids"] == [end]


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ({"logit_bias": {"2048": 1}}, "logit_bias must has keys in [0, 2047], got 2048."),
        ({"logit_bias": {"x": 1}}, "got x"),
        ({"stop_regex": "("}, "unterminated"),
        ({"stop_regex": ["a"] * 33}, "at most 32 stop_regex"),
        ({"stop_regex": "a" * 257}, "over the 256-byte limit"),
    ],
)
async def test_biases_and_patterns_are_checked_as_sglang_does(
    engine: Callable[..., Any], prompt: list[int], sampling: dict[str, Any], told: str
) -> None:
    asker = engine()
    reply = await asker.post("/generate", **asker.body(prompt, sampling_params=sampling))
    assert reply.status_code == 400 and told in reply.text


async def test_the_log_says_what_sampling_was_asked_for(engine: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine()
    asked = {"max_new_tokens": 5, "temperature": 0.5, "logit_bias": {"7": -1.0}, "custom_params": {"a": [1]}}
    await asker.generate(prompt, sampling_params=asked)
    [entry] = (await asker.http.get("/log")).json()["requests"]
    assert entry["sampling_params"] == asked
