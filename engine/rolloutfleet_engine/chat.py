"""`POST /v1/chat/completions`, as little of it as a comparison of routes needs: one answer, not streamed, as text."""

import json
import time
import uuid
from typing import Any

import msgspec

from rolloutfleet_engine.call import Call
from rolloutfleet_engine.ending import shown_text
from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.exchange import Exchange, Unreadable, error_response
from rolloutfleet_engine.requests import GenerateRequest, RequestRefused, SamplingParams, plan_request


class ChatRequest(msgspec.Struct, kw_only=True):
    messages: list[dict[str, Any]]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


async def chat(engine: Engine, exchange: Exchange) -> None:
    try:
        request = await exchange.read(ChatRequest)
        if request.stream:
            raise RequestRefused("the simulated engine streams /generate only")
        sampling = SamplingParams(
            max_new_tokens=request.max_completion_tokens or request.max_tokens,
            temperature=request.temperature,
            sampling_seed=request.seed,
            stop=request.stop,
        )
        call = engine.admit(uuid.uuid4().hex, routing_key=exchange.header(b"x-smg-routing-key"))
    except (Unreadable, RequestRefused) as error:
        await exchange.answer(error_response(str(error), 400, kind="BadRequestError"), 400)
        return
    watcher = exchange.watch(call.leave)
    outcome = "refused"
    try:
        await call.wait_while(lambda: not engine.accepting)
        native = GenerateRequest(text=prompt_text(request.messages, request.tools))
        engine.begin(call, plan_request(native, sampling, model=engine.model, context=engine.context))
        await call.reach(len(call.ids), engine.clock)
        outcome = "aborted_by_caller" if call.left else "aborted_by_request" if call.aborted else "finished"
        if not call.left:
            await exchange.answer(completion(engine, call))
    except RequestRefused as refusal:
        await exchange.answer(error_response(str(refusal), 400, kind="BadRequestError"), 400)
    finally:
        watcher.cancel()
        engine.close(call, outcome)


def prompt_text(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    """The messages in ChatML, tool results as Qwen writes them."""
    lead = ""
    if tools:
        declared = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        lead = f"<|im_start|>system\n# Tools\n\n<tools>\n{declared}\n</tools><|im_end|>\n"
    return lead + "".join(message_text(message) for message in messages) + "<|im_start|>assistant\n"


def message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    role = message.get("role", "user")
    if role == "tool":
        return f"<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n"
    return f"<|im_start|>{role}\n{content or ''}<|im_end|>\n"


def completion(engine: Engine, call: Call) -> dict[str, Any]:
    plan, generation = call.plan, call.generation
    assert plan is not None and generation is not None
    ids = call.ids[: generation.made]
    text = shown_text(ids, call.finish, plan.sampling, engine.model)
    usage = {
        "prompt_tokens": len(plan.prompt),
        "total_tokens": len(plan.prompt) + len(ids),
        "completion_tokens": len(ids),
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None},
        "logprobs": None,
        "finish_reason": call.finish["type"],
        "matched_stop": call.finish.get("matched"),
    }
    return {
        "id": call.rid,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": engine.name,
        "choices": [choice],
        "usage": usage,
        "metadata": {"weight_version": engine.version},
    }
