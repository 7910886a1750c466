"""`POST /generate`: one request from its bytes to its answer, whole or streamed."""

import asyncio
import json
import time
import uuid

from rolloutfleet_engine.call import Call, aborted_body, reply_body
from rolloutfleet_engine.ending import shown_text
from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.exchange import JSON_TYPE, Exchange, Unreadable, encode, error_response
from rolloutfleet_engine.faults import HTTP_ERRORS, SPOILERS, WIRE_FAULTS
from rolloutfleet_engine.requests import (
    GenerateRequest,
    GrammarRefused,
    Plan,
    RequestRefused,
    check_length,
    plan_request,
    read_sampling,
)

TRUNCATED = 0.5
"""Share of a broken JSON text that is sent."""


async def generate(engine: Engine, exchange: Exchange) -> None:
    try:
        request = await exchange.read(GenerateRequest)
    except Unreadable:
        engine.count_unread()
        raise
    try:
        sampling = read_sampling(request.sampling_params)
        call = engine.admit(request.rid or uuid.uuid4().hex, routing_key=exchange.header(b"x-smg-routing-key"))
        call.traces = exchange.traces()
    except RequestRefused as refusal:
        engine.count_unread()
        await refuse(exchange, refusal, stream=bool(request.stream) and not refusal.bare)
        return

    watcher = exchange.watch(call.leave)
    outcome = "aborted_by_caller"
    try:
        # SGLang holds a call that comes in a pause before it looks at it.
        await call.wait_while(lambda: not engine.accepting)
        if call.left:
            return
        plan = plan_request(request, sampling, model=engine.model, context=engine.context)
        if await answered_with_fault(engine, exchange, call):
            outcome = "faults"
            return
        try:
            engine.begin(call, plan)
        except GrammarRefused as refusal:
            if not plan.stream:
                raise
            outcome = "refused"
            await stream_abort(engine, exchange, call, plan, refusal)
            return
        answered = await (stream_answer if plan.stream else whole_answer)(engine, exchange, call, plan)
        outcome = outcome_of(call, answered=answered)
    except RequestRefused as refusal:
        outcome = "refused" if call.fault is None else "faults"
        await refuse(exchange, refusal, stream=bool(request.stream))
    finally:
        watcher.cancel()
        engine.close(call, outcome)


def outcome_of(call: Call, *, answered: bool) -> str:
    if not answered:
        return "aborted_by_caller"
    if call.fault_kind not in (None, "slow"):
        return "faults"
    return "aborted_by_request" if call.aborted else "finished"


async def refuse(exchange: Exchange, refusal: RequestRefused, *, stream: bool) -> None:
    if not stream:
        message = str(refusal)
        await exchange.answer({"error": message if refusal.bare else {"message": message}}, 400)
        return
    await exchange.start_events()
    error = {"message": str(refusal), "type": "invalid_request_error", "code": 400, "retryable": False}
    await exchange.event(encode({"error": error}))
    await exchange.end_events()


async def stream_abort(engine: Engine, exchange: Exchange, call: Call, plan: Plan, refusal: GrammarRefused) -> None:
    """One event, as of an answer of one token that was aborted."""
    await exchange.start_events()
    finish = {"type": "abort", "message": str(refusal), "status_code": 400, "err_type": "BadRequestError"}
    times = {"e2e_latency": engine.clock() - call.arrived, "response_sent_to_client_ts": time.time()}
    body = aborted_body(call, plan, finish, version=engine.version, times=times, model=engine.model)
    await exchange.event(encode(body))
    await exchange.end_events()


async def answered_with_fault(engine: Engine, exchange: Exchange, call: Call) -> bool:
    """Answers where the call's fault is an error before anything is made."""
    fault = call.fault
    if call.fault_kind == "context_length":
        check_length(engine.context, None, context=engine.context)
    if fault is not None and fault.kind in HTTP_ERRORS:
        status = HTTP_ERRORS[fault.kind]
        message = fault.message or {500: "Internal Server Error", 429: "Too many requests"}.get(status, "Overloaded")
        await exchange.answer(error_response(message, status), status)
        return True
    return False


async def whole_answer(engine: Engine, exchange: Exchange, call: Call, plan: Plan) -> bool:
    """False where the caller left first."""
    made = await call.reach(len(call.ids), engine.clock)
    if call.left:
        return False
    status = call.finish.get("status_code")
    if call.finish["type"] == "abort" and status is not None:
        message = call.finish["message"]
        body = {"error": {"message": message}} if status == 400 else error_response(message, status)
        await exchange.answer(body, status)
        return True
    times = {"e2e_latency": engine.clock() - call.arrived, "response_sent_to_client_ts": time.time()}
    data = encoded(engine, call, made, final=True, times=times)
    if call.fault_kind == "cut_stream":
        await exchange.send_half(data)
    elif call.fault_kind == "garbage_json":
        await exchange.send(truncated(data), kind=JSON_TYPE)
    else:
        await exchange.send(data, kind=JSON_TYPE)
    return True


async def stream_answer(engine: Engine, exchange: Exchange, call: Call, plan: Plan) -> bool:
    """Events that each carry all tokens so far. False where the caller left before the last."""
    assert call.generation is not None
    await exchange.start_events()
    interval = max(1, plan.sampling.stream_interval or engine.options.stream_interval)
    sent = 0
    while True:
        made = await call.reach(sent + interval if sent else 1, engine.clock)
        if call.left:
            return False
        if not call.generation.pace.each and not call.aborted:
            made = min(made, sent + interval if sent else 1)
        final = made == call.generation.total
        times = {"e2e_latency": engine.clock() - call.arrived} if final else {}
        if not sent:
            times["response_sent_to_client_ts"] = time.time()
        data = encoded(engine, call, made, final=final, times=times)
        broken = wire_fault(call, made, final=final)
        await exchange.event(truncated(data) if broken == "garbage_json" else data)
        if broken == "cut_stream":
            return True
        if final or broken:
            break
        sent = made
        # Tokens without latency: let the other calls have their turn.
        await asyncio.sleep(0)
    await exchange.end_events()
    return True


def wire_fault(call: Call, made: int, *, final: bool) -> str | None:
    fault = call.fault
    if fault is None or fault.kind not in WIRE_FAULTS:
        return None
    return fault.kind if final or made >= max(1, fault.after_tokens) else None


def encoded(engine: Engine, call: Call, made: int, *, final: bool, times: dict[str, float]) -> bytes:
    """The reply as JSON, spoiled where the call's fault says so."""
    assert call.plan is not None
    text = shown_text(call.ids[:made], call.finish if final else None, call.plan.sampling, engine.model)
    reply = reply_body(
        call, count=made, model=engine.model, version=engine.version, text=text, times=times, final=final
    )
    fault = call.fault
    spoil = SPOILERS.get(fault.kind) if fault is not None and (final or made > fault.after_tokens) else None
    if spoil is None:
        return encode(reply)
    # A copy with lists for tuples; and Python's own encoder, which writes NaN and Infinity as they are.
    spoiled = json.loads(encode(reply))
    spoil(spoiled)
    return json.dumps(spoiled, separators=(",", ":"), ensure_ascii=False).encode()


def truncated(data: bytes) -> bytes:
    return data[: int(len(data) * TRUNCATED)]
