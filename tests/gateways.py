"""The real gateway, for tests: as a fleet starts it, but for its control plane, which is open."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
from tests.processes import Server, free_ports

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator import commands, smg

SPEC = FleetSpec.model_validate({"model": "simulated", "engine": {}})
LOOPBACK = "127.0.0.1"
QUICK: Mapping[str, object] = {
    "--health-check-interval-secs": 1,
    # SGLang takes a second and more for GET /health: it generates a token.
    "--health-check-timeout-secs": 5,
    "--shutdown-grace-period-secs": 2,
}


@dataclass(frozen=True, slots=True)
class Gateway(Server):
    metrics_url: str


@dataclass(frozen=True, slots=True)
class GatewayCommand:
    """How to start one, and where it will be."""

    argv: list[str]
    port: int
    metrics_port: int

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{LOOPBACK}:{self.metrics_port}/metrics"


def gateway_command(engines: Sequence[str], more: Mapping[str, object] | None = None) -> GatewayCommand:
    """`more` goes over the flags that a fleet gives."""
    port, metrics_port = free_ports(2)
    flags = {
        "--host": LOOPBACK,
        "--port": port,
        "--prometheus-host": LOOPBACK,
        "--prometheus-port": metrics_port,
        **smg.flags(SPEC),
        **QUICK,
        **(more or {}),
    }
    argv = [*commands.module(sys.executable, smg.MODULE), *commands.flags(flags), *smg.named_engines(engines)]
    return GatewayCommand(argv, port, metrics_port)


def healthy_engines(gateway: str) -> int:
    """The number of engines that it takes for healthy."""
    try:
        workers = httpx.get(f"{gateway}/workers", trust_env=False).json()["workers"]
    except httpx.TransportError:
        return 0
    return sum(worker["is_healthy"] for worker in workers)
