"""SGLang's routes around generation (pause, weights, health, information), and the engine's own for tests."""

import time
from datetime import UTC, datetime
from typing import Any

from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.exchange import Exchange
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.requests import AbortRequest, PauseRequest, UpdateVersion, UpdateWeights

SGLANG_VERSION = "0.5.23"
"""The version whose answers are simulated."""


async def abort_request(engine: Engine, exchange: Exchange) -> None:
    request = await exchange.read(AbortRequest)
    engine.abort(request.rid or "", abort_all=request.abort_all)
    await exchange.send(b"")


async def pause_generation(engine: Engine, exchange: Exchange) -> None:
    await engine.pause((await exchange.read(PauseRequest)).mode)
    await exchange.answer({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(engine: Engine, exchange: Exchange) -> None:
    await exchange.read(dict[str, Any])
    engine.go_on()
    await exchange.answer({"message": "Generation continued successfully.", "status": "ok"})


async def update_weight_version(engine: Engine, exchange: Exchange) -> None:
    request = await exchange.read(UpdateVersion)
    if request.abort_all_requests:
        engine.abort(abort_all=True)
    engine.change_version(request.new_version)
    message = f"Weight version updated to {request.new_version}"
    await exchange.answer({"success": True, "message": message, "new_version": request.new_version})


async def update_weights_from_disk(engine: Engine, exchange: Exchange) -> None:
    request = await exchange.read(UpdateWeights)
    success, message = await engine.update_weights(
        request.weight_version, abort_all=request.abort_all_requests, flush=request.flush_cache
    )
    answer = {"success": success, "message": message, "num_paused_requests": 0}
    await exchange.answer(answer, 200 if success else 400)


async def flush_cache(engine: Engine, exchange: Exchange) -> None:
    busy = engine.running and engine.frozen != "retract"
    text = (
        "Flush cache failed.\n"
        if busy
        else "Cache flushed.\nPlease check backend logs for more details. "
        "(When there are running or waiting requests, the operation will not be performed.)\n"
    )
    await exchange.send(text.encode(), 400 if busy else 200)


async def health(engine: Engine, exchange: Exchange) -> None:
    await exchange.send(b"", 200 if await engine.healthy() else 503)


async def ready(engine: Engine, exchange: Exchange) -> None:
    """Whether it takes requests; unlike its health, this is answered while it is paused."""
    await exchange.send(b"", 503 if engine.paused else 200)


async def model_info(engine: Engine, exchange: Exchange) -> None:
    await exchange.answer(
        {
            "model_path": str(engine.options.model_path),
            "served_model_name": engine.name,
            "tokenizer_path": str(engine.options.model_path),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": engine.version,
            "load_format": "auto",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": engine.model.config.get("model_type"),
            "architectures": engine.model.config.get("architectures"),
        }
    )


async def server_info(engine: Engine, exchange: Exchange) -> None:
    await exchange.answer(
        {
            "model_path": str(engine.options.model_path),
            "tokenizer_path": str(engine.options.model_path),
            "served_model_name": engine.name,
            "context_length": engine.context,
            "random_seed": engine.options.seed,
            "stream_interval": engine.options.stream_interval,
            "weight_version": engine.version,
            "tp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "max_total_num_tokens": 64 * engine.context,
            "max_running_requests": None,
            "internal_states": [{"last_gen_throughput": 0.0, "weight_version": engine.version}],
            "version": SGLANG_VERSION,
            "frontend": "rolloutfleet-engine",
        }
    )


async def models(engine: Engine, exchange: Exchange) -> None:
    card = {
        "id": engine.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": engine.name,
        "parent": None,
        "max_model_len": engine.context,
    }
    await exchange.answer({"object": "list", "data": [card]})


async def loads(engine: Engine, exchange: Exchange) -> None:
    generating = [call for call in engine.calls.values() if call.plan is not None]
    tokens = sum(len(call.plan.prompt) + len(call.logprobs) for call in generating if call.plan is not None)
    waiting = len(generating) if engine.frozen == "retract" else 0
    load = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": len(generating) - waiting,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": 0 if waiting else tokens,
        "num_total_tokens": tokens,
        "num_active_tokens": tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": 64 * engine.context,
        "max_running_requests": 4096,
        "token_usage": 0.0,
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": 0,
        "total_prefill_busy_us": 0,
        "decode_moments": None,
    }
    await exchange.answer(
        {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": SGLANG_VERSION,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [load],
        }
    )


async def show_faults(engine: Engine, exchange: Exchange) -> None:
    await exchange.answer({"faults": engine.faults})


async def add_faults(engine: Engine, exchange: Exchange) -> None:
    """One fault or a list of them, put at the end of the queue."""
    faults: Fault | list[Fault] = await exchange.read(Fault | list[Fault])  # type: ignore[arg-type]
    engine.faults += faults if isinstance(faults, list) else [faults]
    await show_faults(engine, exchange)


async def clear_faults(engine: Engine, exchange: Exchange) -> None:
    engine.faults.clear()
    await show_faults(engine, exchange)


async def counters(engine: Engine, exchange: Exchange) -> None:
    await exchange.answer(engine.totals())


async def log(engine: Engine, exchange: Exchange) -> None:
    """Ended requests, the oldest first."""
    entries = [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in entry.items()}
        for entry in engine.log
    ]
    await exchange.answer({"requests": entries})
