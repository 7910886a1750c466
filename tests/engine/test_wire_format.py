"""The simulated engine answers as the real one does: the same requests to both, and the same shape from both.

A shape is the status, the content type, every field at every depth with its JSON type, and for streams what follows
what. Values are not compared, as the tokens of both are random; error texts are, of refusals.
Where the two may differ stands, with the reason, in ALLOWED, and nowhere else.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from tests.engine.engines import JSON, Engine, Generation, Reply
from tests.engine.sglang.launch import CONTEXT_LENGTH
from tests.engine.shapes import ABSENT, Difference, Shape, differences, shape_of, shape_of_stream
from tests.waiting import PATIENCE, comes_true, eventually


@dataclass(frozen=True, slots=True)
class Allowed:
    """Differences that may be: of the requests and at the places that these patterns match in full."""

    request: str
    place: str
    reason: str
    only_left_out: bool = True

    def covers(self, request: str, difference: Difference) -> bool:
        if self.only_left_out and difference.simulated != ABSENT:
            return False
        return bool(re.fullmatch(self.request, request) and re.fullmatch(self.place, difference.path))


ALLOWED = (
    Allowed("the server.*", r"body\..+", "the real one's thousand settings of GPUs and kernels: none of them is read"),
    Allowed("the model, .*|the model", r"body\.embedding", "tells of embedding models, and this is none"),
    Allowed("the loads", r"body\.loads\[\]\.(memory|disaggregation|queues)", "it has no such parts"),
    Allowed(
        ".*the loads",
        r"body\.loads\[\]\.decode_moments",
        "null until something was decoded, then sums over batches, which it does not make",
        only_left_out=False,
    ),
    Allowed(".*the loads", r"body\.accelerator", "the GPU's name; null without one", only_left_out=False),
    Allowed("weights from nowhere", "status", "it has no weights, so any path will do", only_left_out=False),
)

ENDLESS = 7000
"""Tokens of a generation that is ended long before."""
LONG = 1000
"""Of one that is paused and then made to its end: seconds, in which the pause must come."""
SHORT = 60
"""Enough for a first event of a stream, others and a last, also where a busy machine puts several tokens in one."""
EVENTS = 4
"""Of a stream with all kinds of them: a first, another, the last, and `[DONE]`."""
LEFT_OUT = object()
STOP_STRING = "er"
"""Part of no special token: the real engine looks into their names too, although its text leaves them out."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, the same for both engines. `body` of bytes goes as it is."""

    path: str
    body: JSON = None
    method: str = "POST"


def prompt(seed: str, *, length: int = 20) -> list[int]:
    """Its own for each request: a prompt that the real engine has cached gets other fields than a new one."""
    picked = random.Random(seed)
    return [picked.randrange(300, 1900) for _ in range(length)]


def generate(
    name: str, *, sampling: dict[str, JSON] | None = None, max_new_tokens: int = SHORT, **fields: JSON
) -> Request:
    params = {"max_new_tokens": max_new_tokens, "temperature": 1.0, "ignore_eos": True}
    body = {"input_ids": prompt(name), "sampling_params": params | (sampling or {}), "return_logprob": True}
    return Request("/generate", {key: value for key, value in (body | fields).items() if value is not LEFT_OUT})


GENERATIONS: dict[str, dict[str, JSON]] = {
    "plain": {},
    "without log-probabilities": {"return_logprob": False},
    "two top log-probabilities": {"top_logprobs_num": 2},
    "with the prompt's log-probabilities": {"logprob_start_len": 0},
    "with those of the prompt's end": {"logprob_start_len": 3},
    "with texts beside log-probabilities": {"return_text_in_logprobs": True},
    "no tokens asked": {"sampling": {"max_new_tokens": 0}},
    "a stop token": {"sampling": {"stop_token_ids": list(range(2048)), "ignore_eos": False}},
    "a stop token, with ends of sequences ignored": {"sampling": {"stop_token_ids": list(range(2048))}},
    "greedy": {"sampling": {"temperature": 0}},
    "seeded": {"sampling": {"sampling_seed": 7}},
    "a field unknown to it": {"unheard_of": 1},
    "all sampling parameters that the proxy passes on": {
        "sampling": {
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.01,
            "frequency_penalty": 0.1,
            "presence_penalty": 0.1,
            "repetition_penalty": 1.1,
            "min_new_tokens": 2,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "stop": ["no such text"],
        }
    },
}

REFUSED_GENERATIONS: dict[str, dict[str, JSON]] = {
    "input longer than the context": {"input_ids": [500] * (CONTEXT_LENGTH + 1)},
    "input as long as the context": {"input_ids": [500] * CONTEXT_LENGTH},
    "more than the context in all": {"max_new_tokens": CONTEXT_LENGTH},
    "no ids": {"input_ids": []},
    "no input": {"input_ids": LEFT_OUT},
    "ids that are text": {"input_ids": "abc"},
    "ids that are fractions": {"input_ids": [500.5]},
    "a negative budget": {"sampling": {"max_new_tokens": -1}},
    "a negative temperature": {"sampling": {"temperature": -0.5}},
    "top_p above one": {"sampling": {"top_p": 1.5}},
    "top_k below minus one": {"sampling": {"top_k": -2}},
    "a penalty out of range": {"sampling": {"frequency_penalty": 2.5}},
    "a temperature that is text": {"sampling": {"temperature": "hot"}},
    "an unknown sampling parameter": {"sampling": {"unheard_of": 1}},
    "sampling parameters that are text": {"sampling_params": "hot"},
}

FLUSH = "flush the cache"
REQUESTS = {
    "broken JSON": Request("/generate", b"{broken"),
    "a list": Request("/generate", []),
    "an empty body": Request("/generate", b""),
    "generate by GET": Request("/generate", method="GET"),
    "an unknown path": Request("/unheard_of", method="GET"),
    "abort an unknown id": Request("/abort_request", {"rid": "unheard_of"}),
    "abort nothing": Request("/abort_request", {}),
    "abort all": Request("/abort_request", {"abort_all": True}),
    "abort without a body": Request("/abort_request", b""),
    "pause in an unknown mode": Request("/pause_generation", {"mode": "gently"}),
    "pause without a body": Request("/pause_generation", b""),
    "continue when not paused": Request("/continue_generation", {}),
    "continue without a body": Request("/continue_generation", b""),
    "a version": Request("/update_weight_version", {"new_version": "1"}),
    "no version": Request("/update_weight_version", {}),
    "a version that is a number": Request("/update_weight_version", {"new_version": 1}),
    "weights without a path": Request("/update_weights_from_disk", {}),
    "weights from nowhere": Request("/update_weights_from_disk", {"model_path": "/no/such/model"}),
    FLUSH: Request("/flush_cache", b""),
    "health": Request("/health", method="GET"),
    "whether it takes requests": Request("/ready", method="GET"),
    "health by a generation": Request("/health_generate", method="GET"),
    "the model": Request("/model_info", method="GET"),
    "the model, by its older name": Request("/get_model_info", method="GET"),
    "the server": Request("/server_info", method="GET"),
    "the server, by its older name": Request("/get_server_info", method="GET"),
    "the models": Request("/v1/models", method="GET"),
    "the loads": Request("/v1/loads", method="GET"),
    "the core of the loads": Request("/v1/loads?include=core", method="GET"),
}


async def ask(engine: Engine, request: Request) -> Reply:
    if request.method == "GET":
        return await engine.get(request.path)
    if request.path == "/generate" and isinstance(request.body, dict):
        return await engine.generate(request.body)
    return await engine.post(request.path, request.body)


def shape_of_reply(reply: Reply) -> Shape:
    return shape_of_stream(reply.body) if reply.streamed else shape_of(reply.body)


def assert_alike(request: str, real: Reply, simulated: Reply) -> None:
    found = [
        *differences(f"{real.status}", f"{simulated.status}", path="status"),
        *differences(f"{real.content_type}", f"{simulated.content_type}", path="content type"),
        *differences(shape_of_reply(real), shape_of_reply(simulated), path="body"),
    ]
    unexpected = [found_one for found_one in found if not any(rule.covers(request, found_one) for rule in ALLOWED)]
    assert not unexpected, "\n".join(map(str, unexpected[:20]))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", GENERATIONS)
async def test_generations(name: str, stream: bool, real_engine: Engine, simulated_engine: Engine) -> None:
    """A busy machine may put all tokens into one event of the real engine's: then another is made."""
    for attempt in range(20):
        request = generate(f"{name} {stream}{' again' * attempt}", stream=stream, **GENERATIONS[name])
        real, simulated = await ask(real_engine, request), await ask(simulated_engine, request)
        assert real.status == 200
        if not stream or (len(real.body) < EVENTS) == (len(simulated.body) < EVENTS):
            break
    assert_alike(name, real, simulated)
    assert real.finish_type == simulated.finish_type


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_stop_strings(stream: bool, trimmed: bool, real_engine: Engine, simulated_engine: Engine) -> None:
    """The text ends before the stop string, the ids after the token that completed it."""
    sampling = {"stop": [STOP_STRING], "no_stop_trim": not trimmed}
    real, simulated = [
        await stopped_later(engine, name=f"a stop string {stream} {trimmed}", sampling=sampling, stream=stream)
        for engine in (real_engine, simulated_engine)
    ]
    assert_alike("a stop string", real, simulated)
    for reply in (real, simulated):
        assert reply.final["meta_info"]["finish_reason"] == {"type": "stop", "matched": STOP_STRING}
        assert (STOP_STRING in reply.final["text"]) is not trimmed
        assert len(reply.output_ids) == len(reply.logprobs) == reply.final["meta_info"]["completion_tokens"]


async def stopped_later(engine: Engine, *, name: str, sampling: dict[str, JSON], stream: bool) -> Reply:
    """A generation that did not stop at its first tokens, so that its stream has all kinds of events.

    A busy machine may put all tokens into one event: then another is made.
    """
    for attempt in range(20):
        request = generate(f"{name} {attempt}", sampling=sampling, max_new_tokens=LONG, stream=stream)
        reply = await ask(engine, request)
        if len(reply.output_ids) > 3 and not (stream and len(reply.body) < EVENTS):
            return reply
    raise AssertionError(f"always stopped at once: {reply}")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", REFUSED_GENERATIONS)
async def test_refused_generations(name: str, stream: bool, real_engine: Engine, simulated_engine: Engine) -> None:
    """A stream that is refused after its body was read says so in an event, with status 200."""
    request = generate(f"{name} {stream}", stream=stream, **REFUSED_GENERATIONS[name])
    real, simulated = await ask(real_engine, request), await ask(simulated_engine, request)
    assert_alike(name, real, simulated)
    assert words_of(simulated) == words_of(real)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fields", [{}, {"top_logprobs_num": 2}, {"return_logprob": False}])
async def test_a_grammar_that_is_none(
    fields: dict[str, JSON], stream: bool, real_engine: Engine, simulated_engine: Engine
) -> None:
    """A stream says so in the place of its first token, which has no log-probability."""
    request = generate(f"no regex {stream}", stream=stream, sampling={"regex": "[ab"}, **fields)
    real, simulated = await ask(real_engine, request), await ask(simulated_engine, request)
    assert real.status == (200 if stream else 400)
    assert_alike("a grammar that is none", real, simulated)


def words_of(refusal: Reply) -> str | None:
    """The message, which the proxy reads too; None where a parser's own words stand."""
    body = refusal.body[0] if refusal.streamed else refusal.body
    error = body.get("error")
    return str(error["message"]) if isinstance(error, dict) else None


@pytest.mark.parametrize("name", REQUESTS)
async def test_all_other_requests(name: str, real_engine: Engine, simulated_engine: Engine) -> None:
    request = REQUESTS[name]
    real, simulated = await ask(real_engine, request), await ask(simulated_engine, request)
    # The request before is answered a moment before SGLang's scheduler is done with it, and has a cache to flush.
    async with asyncio.timeout(PATIENCE):
        while name == FLUSH and real.status == 400:
            real = await ask(real_engine, request)
    assert_alike(name, real, simulated)


# In mid-flight. Each scenario gives the replies, in its own order, that are then compared one by one.

Scenario = Callable[[Engine, bool], Awaitable[list[Reply]]]


async def in_flight(
    engine: Engine, *, stream: bool, name: str, rid: str | None = None, max_new_tokens: int = ENDLESS
) -> Generation:
    """A long generation that has begun to make tokens."""
    request = generate(f"{name} {stream}", max_new_tokens=max_new_tokens, stream=stream, rid=rid or LEFT_OUT)
    generation = engine.start(request.body)
    if stream:
        await comes_true(lambda: len(generation.events) > 3)
    else:
        await eventually(lambda: engine.running_requests() > 0)
    return generation


async def aborted_by_its_id(engine: Engine, stream: bool) -> list[Reply]:
    rid = f"the-one-to-abort-{stream}"
    generation = await in_flight(engine, stream=stream, name="aborted by its id", rid=rid)
    return [await engine.post("/abort_request", {"rid": rid}), await generation.reply()]


async def aborted_with_all(engine: Engine, stream: bool) -> list[Reply]:
    generation = await in_flight(engine, stream=stream, name="aborted with all")
    return [await engine.post("/abort_request", {"abort_all": True}), await generation.reply()]


async def an_id_used_twice(engine: Engine, stream: bool) -> list[Reply]:
    rid = f"used-twice-{stream}"
    generation = await in_flight(engine, stream=stream, name="an id used twice", rid=rid)
    second = await engine.generate(generate(f"second {stream}", rid=rid, stream=stream).body)
    await engine.post("/abort_request", {"rid": rid})
    return [second, await generation.reply()]


async def paused(engine: Engine, stream: bool, mode: str) -> list[Reply]:
    tokens = ENDLESS if mode == "abort" else LONG
    generation = await in_flight(engine, stream=stream, name=f"paused {mode}", max_new_tokens=tokens)
    pause = await engine.pause(mode)
    held = engine.start(generate(f"held {mode} {stream}", stream=stream).body)
    ready = await engine.get("/ready")
    version = await engine.post("/update_weight_version", {"new_version": "2", "abort_all_requests": False})
    assert not held.task.done()
    go_on = await engine.go_on()
    return [pause, ready, version, go_on, await generation.reply(), await held.reply()]


async def paused_to_abort(engine: Engine, stream: bool) -> list[Reply]:
    return await paused(engine, stream, "abort")


async def paused_to_retract(engine: Engine, stream: bool) -> list[Reply]:
    return await paused(engine, stream, "retract")


async def paused_in_place(engine: Engine, stream: bool) -> list[Reply]:
    return await paused(engine, stream, "in_place")


async def new_weights_in_place(engine: Engine, stream: bool) -> list[Reply]:
    """A cache in use is not flushed: an error by default, although the weights have changed."""
    generation = await in_flight(engine, stream=stream, name="new weights in place", max_new_tokens=LONG)
    await engine.pause("in_place")
    path = (await engine.get("/model_info")).body["model_path"].replace("first", "second")
    update = {"model_path": path, "weight_version": "2"}
    refused = await engine.post("/update_weights_from_disk", update)
    done = await engine.post("/update_weights_from_disk", update | {"flush_cache": False})
    await engine.go_on()
    return [refused, done, await generation.reply()]


async def left_by_its_caller(engine: Engine, stream: bool) -> list[Reply]:
    generation = await in_flight(engine, stream=stream, name="left by its caller")
    await generation.leave()
    await eventually(lambda: engine.running_requests() == 0)
    return []


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (
        aborted_by_its_id,
        aborted_with_all,
        an_id_used_twice,
        paused_to_abort,
        paused_to_retract,
        paused_in_place,
        new_weights_in_place,
        left_by_its_caller,
    )
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_in_mid_flight(name: str, stream: bool, real_engine: Engine, simulated_engine: Engine) -> None:
    real = await SCENARIOS[name](real_engine, stream)
    simulated = await SCENARIOS[name](simulated_engine, stream)
    for real_reply, simulated_reply in zip(real, simulated, strict=True):
        assert_alike(name, real_reply, simulated_reply)
        if name.startswith(("paused", "new weights")):
            assert versions_of(real_reply) == versions_of(simulated_reply)


def versions_of(reply: Reply) -> list[str] | None:
    """The order of versions, without where each ends; None for what is no generation."""
    is_generation = isinstance(reply.final, dict) and "meta_info" in reply.final
    return [version for version, _, _ in reply.versions] if is_generation else None
