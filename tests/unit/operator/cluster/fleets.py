"""Fleets for the tests here."""

from typing import Any

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator.cluster.children.names import Fleet
from rolloutfleet_operator.cluster.settings import OperatorSettings

OPERATOR = OperatorSettings(
    proxy_image="proxy:1",
    gateway_image="gateway:1",
    engine_image="sglang:1",
    simulated_engine_image="engine:1",
    lease_namespace="ops",
)

CHILDREN = {
    "StatefulSet/math-proxy",
    "Deployment/math-gateway",
    "Deployment/math-engine",
    "Service/math",
    "Service/math-proxies",
    "Service/math-gateway",
    "Service/math-engine-pods",
    "ConfigMap/math-settings",
    "PodDisruptionBudget/math-proxy",
    "PodDisruptionBudget/math-gateway",
}
"""Of a fleet named math, with one simulated engine and nothing more asked for: `Kind/name` of what is watched."""


def spec_of(**fields: Any) -> FleetSpec:
    return FleetSpec.model_validate({"model": "simulated", "engine": {"gpus": 0}, **fields})


def fleet_of(name: str = "math", generation: int = 1, **fields: Any) -> Fleet:
    return Fleet(name=name, namespace="rl", uid="u-1", generation=generation, spec=spec_of(**fields))
