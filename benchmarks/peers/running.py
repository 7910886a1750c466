"""The peers as processes, with the settings that their documentation gives for production.

FastAPI, httpx and uvicorn are those of `requirements.lock`, which `make setup` installs. LiteLLM is installed from the
package index into an environment of its own, as `litellm.lock` says.
"""

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from tests.processes import free_port

from benchmarks.peers.environments import python_of
from benchmarks.rigs.bench import Bench
from benchmarks.rigs.load import Target
from benchmarks.rigs.processes import Running
from benchmarks.rigs.stack import MODEL, answers

TIMEOUT: Final = 180.0
"""Seconds that LiteLLM may take to serve: it imports a great deal."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A running peer, its process tree the one that is measured."""

    target: Target
    process: Running


Started = AbstractContextManager[Peer]


@contextmanager
def fastapi_httpx(on: Bench, name: str = "fastapi_httpx") -> Iterator[Peer]:
    """One process in R1's shape: see `fastapi_httpx.py`."""
    folder, port = _folder(on, name), free_port()
    url, key = f"http://127.0.0.1:{port}", folder / "key"
    key.write_text("unused\n", encoding="ascii")
    line = [
        *(sys.executable, "-m", "benchmarks.peers.fastapi_httpx", "--port", str(port)),
        *("--upstream", on.gateway.url, "--tokenizer", str(on.model / "tokenizer.json")),
    ]
    with Running(line, log=folder / "peer.log") as process:
        on.commands[name] = line
        process.wait_until(lambda: answers(f"{url}/health"))
        yield Peer(Target(name=name, url=url, model=MODEL, admin_key_file=key), process)


LITELLM_ENVIRONMENT: Final = {
    # https://docs.litellm.ai/docs/proxy/prod
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    # It would fetch a table of prices from the network at each start.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def litellm_settings(upstream: str, key: str) -> dict[str, Any]:
    """The production page's file, less what is there for a database and for alerts, neither of which it has here."""
    return {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "unused"},
            }
        ],
        "general_settings": {"master_key": key},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "json_logs": True},
    }


@contextmanager
def litellm(on: Bench, name: str = "litellm") -> Iterator[Peer]:
    """Its proxy with one worker, as its page advises where several stand side by side. Installs it if need be."""
    python = python_of("litellm")
    folder, port = _folder(on, name), free_port()
    url, key = f"http://127.0.0.1:{port}", folder / "key"
    key.write_text(f"sk-{secrets.token_urlsafe(24)}\n", encoding="ascii")
    settings = folder / "config.yaml"
    settings.write_text(yaml.safe_dump(litellm_settings(on.gateway.url, key.read_text().strip())), encoding="utf-8")
    line = [
        *(str(python.with_name("litellm")), "--config", str(settings), "--host", "127.0.0.1", "--port", str(port)),
        *("--num_workers", "1"),
    ]
    with Running(line, log=folder / "peer.log", environment=LITELLM_ENVIRONMENT | {"PYTHONPATH": ""}) as process:
        on.commands[name] = line
        process.wait_until(lambda: answers(f"{url}/health/liveliness"), timeout=TIMEOUT)
        yield Peer(Target(name=name, url=url, model=MODEL, admin_key_file=key, stateless=True), process)


def _folder(on: Bench, name: str) -> Path:
    folder = on.folder / name
    folder.mkdir(parents=True)
    return folder


PEERS: Final[dict[str, Callable[[Bench], Started]]] = {"fastapi_httpx": fastapi_httpx, "litellm": litellm}
