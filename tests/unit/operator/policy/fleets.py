"""Fleets as the tests ask for them, and what their status says."""

from typing import Any

from tests.unit.operator.policy.world import World

from rolloutfleet.spec import FleetSpec

MEMORY = {"rssBudget": "2Gi", "samples": 3, "interval": "1s", "cooldown": "60s"}
DISRUPTION = {"maxUnavailable": 1, "drainTimeout": "20s", "retireTimeout": "120s"}


def fleet(*, replicas: int = 3, ephemeral: bool = False, **more: Any) -> FleetSpec:
    """A fleet with short times; `memory` and `disruption` are merged over MEMORY and DISRUPTION."""
    spec = {"model": "m", "engine": {}, "proxies": {"replicas": replicas, "storage": {"ephemeral": ephemeral}}, **more}
    spec["memory"] = {**MEMORY, **more.get("memory", {})}
    spec["disruption"] = {**DISRUPTION, **more.get("disruption", {})}
    return FleetSpec.model_validate(spec)


def condition(world: World, kind: str = "Ready") -> tuple[str, str]:
    """Status and reason."""
    found = next(each for each in world.status.conditions if each.type == kind)
    return found.status, found.reason


def problems(world: World) -> list[tuple[str | None, str]]:
    """Pod and reason of each problem."""
    return [(each.pod, each.reason) for each in world.status.problems]
