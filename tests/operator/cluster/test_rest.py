"""What a pass keeps for the next one."""

from dataclasses import replace

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.looking import Look
from rolloutfleet_operator.cluster.rest import Rest


def named(kind: str, name: str) -> Object:
    return {"kind": kind, "metadata": {"name": name, "labels": {"é": "ü"}}, "spec": {"replicas": 3, "paused": None}}


def test_it_comes_back_as_it_was_less_what_is_not_watched() -> None:
    body = named("RolloutFleet", "math")
    there = Look(
        children={("Service", "math"): named("Service", "math"), ("ConfigMap", "a"): named("ConfigMap", "a")},
        proxies=(named("Pod", "math-proxy-0"), named("Pod", "math-proxy-1")),
        gateways=(named("Pod", "math-gateway"),),
        managed=(),
        claims=(named("PersistentVolumeClaim", "state-math-proxy-0"),),
    )
    read = replace(there, secret=named("Secret", "math-keys"), lost_nodes=frozenset(("one",)), engines=())
    rest = Rest.of(body, read, since=7.0)
    assert rest.unpacked() == (body, there)
    assert rest.since == 7.0


def test_it_is_small() -> None:
    pods = tuple(named("Pod", f"math-proxy-{ordinal}") for ordinal in range(1000))
    there = Look(children={}, proxies=pods, gateways=(), managed=(), claims=())
    assert len(Rest.of({}, there, since=0.0).packed) < 30_000
