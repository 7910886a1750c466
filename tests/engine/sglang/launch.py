"""How the real SGLang is started: on a CPU, with or without an NVIDIA driver, or with options for a GPU."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.engine.sglang.places import Installed

CONTEXT_LENGTH = 8192
CACHED_TOKENS = 20_000
CPU_OPTIONS = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"),
    *("--mem-fraction-static", "0.2", "--max-total-tokens", str(CACHED_TOKENS)),
    "--disable-overlap-schedule",
)


def command(installed: Installed, *, model: Path, port: int, request_log: Path, host: str = "127.0.0.1") -> list[str]:
    return [
        *(str(installed.python), "-m", "sglang.launch_server"),
        *("--host", host, "--port", str(port)),
        *("--model-path", str(model), "--weight-version", "1", "--context-length", str(CONTEXT_LENGTH)),
        *(CPU_OPTIONS if installed.options is None else installed.options),
        "--skip-server-warmup",
        # All of each request and answer, a line of JSON each: what tests compare a store with.
        *("--log-requests", "--log-requests-level", "3", "--log-requests-format", "json"),
        *("--log-requests-target", str(request_log)),
        "--sleep-on-idle",  # else its scheduler keeps a whole core busy while nothing runs
    ]


def environment(installed: Installed, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    # Without byte code on disk each start compiles torch and all else anew, which takes three times as long.
    dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in inherited.items() if name not in dropped}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return kept | offline | (_cpu_environment(installed) if installed.options is None else {})


def _cpu_environment(installed: Installed) -> dict[str, str]:
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "LD_LIBRARY_PATH": str(installed.driver),
        "OMP_NUM_THREADS": "1",
        # Some penalties are compiled when first asked for, which takes a C++ compiler and Python's headers.
        "TORCHDYNAMO_DISABLE": "1",
    }
