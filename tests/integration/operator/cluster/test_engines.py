"""The liveness probe of an engine that requires a key."""

import subprocess
import sys

from tests.processes import free_port
from tests.unit.operator.cluster.fleets import OPERATOR, fleet_of

from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine
from rolloutfleet_operator.cluster.children import engines


def is_alive(port: int) -> bool:
    """What the probe's command says of an engine there."""
    fleet = fleet_of(gateway={"apiKeySecret": "engines"})
    assert fleet.spec.engine is not None
    made = engines.deployment(fleet, fleet.spec.engine, OPERATOR, replicas=1)
    probe = made["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    _, *words, at = probe["exec"]["command"]
    assert at == "30000"
    return subprocess.run([sys.executable, *words, str(port)], stderr=subprocess.DEVNULL).returncode == 0


def test_an_engine_that_requires_a_key_is_alive_to_its_probe() -> None:
    port = free_port()
    assert not is_alive(port)
    with running_engine(EngineOptions(api_key="a key"), port=port):
        assert is_alive(port)
