"""What a pass keeps for the next one."""

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.reading import Snapshot


def named(kind: str, name: str) -> Object:
    return {"kind": kind, "metadata": {"name": name, "labels": {"é": "ü"}}, "spec": {"replicas": 3, "paused": None}}


def test_it_comes_back_as_it_was() -> None:
    body = named("RolloutFleet", "math")
    found = {
        "Service": [named("Service", "math"), named("Service", "math-proxies")],
        "Pod": [named("Pod", "math-proxy-0")],
        "Ingress": [],
    }
    snapshot = Snapshot.of(body, found, since=7.0)
    assert snapshot.unpacked() == (body, found)
    assert snapshot.since == 7.0


def test_it_is_small() -> None:
    pods = [named("Pod", f"math-proxy-{ordinal}") for ordinal in range(1000)]
    assert len(Snapshot.of({}, {"Pod": pods}, since=0.0).packed) < 30_000
