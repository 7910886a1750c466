"""Engines that the fleet runs itself: SGLang, or the simulated engine where `model: simulated` says so."""

from collections.abc import Sequence
from typing import Final

from rolloutfleet.spec import SIMULATED_MODEL, EngineSpec
from rolloutfleet_operator import commands
from rolloutfleet_operator.cluster.children.merging import Fixed, merge
from rolloutfleet_operator.cluster.children.names import ENGINE_PORT, Component, Fleet
from rolloutfleet_operator.cluster.children.pods import (
    INIT,
    TMP,
    Manifest,
    deployment_of,
    get,
    leave_lost_nodes_soon,
    pod_template,
    set_default_requests,
)
from rolloutfleet_operator.cluster.children.secret import ENGINE_KEY
from rolloutfleet_operator.cluster.children.templates import noted
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.commands import KeyFlag
from rolloutfleet_operator.policy.observed import LOADED_WITHIN

CONTAINER: Final = "engine"
PATH: Final = "spec.engine.podTemplate"
GPU: Final = "nvidia.com/gpu"
LEAVING: Final = 10
"""Seconds that an engine which is told to end goes on, for the operator to take it out of every gateway's list."""
GRACE: Final = 60 + LEAVING
_PERIOD: Final = 10


def deployment(fleet: Fleet, engine: EngineSpec, operator: OperatorSettings, *, replicas: int) -> Manifest:
    """Raises TemplateInvalid."""
    simulated = fleet.spec.model == SIMULATED_MODEL
    container = _simulated(engine, operator) if simulated else _sglang(fleet, engine, operator)
    template = pod_template(fleet, Component.ENGINE, {**_CONTAINER, **container}, grace=GRACE)
    if simulated:
        leave_lost_nodes_soon(template["spec"])
    else:
        _loosen(template["spec"])
    if fleet.spec.gateway.api_key_secret is not None:
        start = (*INIT, *_asking("rolloutfleet_engine")) if simulated else _asking(_SGLANG)
        _ask_for_key(template["spec"], fleet.spec.gateway.api_key_secret, command=start)
    fixed = Fixed(container=CONTAINER, volumes=frozenset((TMP, _SHM, ENGINE_KEY.name)))
    merged = merge(template, engine.pod_template, path=PATH, fixed=fixed)
    cpu, memory = ("50m", "192Mi") if simulated else ("1", "4Gi")
    set_default_requests(merged, CONTAINER, cpu=cpu, memory=memory)
    # There may be no GPU to spare for an engine more.
    made = deployment_of(
        fleet,
        fleet.engine,
        Component.ENGINE,
        merged,
        replicas=replicas,
        surge=0,
        unavailable=1,
    )
    return noted(made, _part(fleet, engine))


def _part(fleet: Fleet, engine: EngineSpec) -> Manifest:
    """The engines' own part of the spec; a default that a later release has is left out until somebody sets it."""
    spec = fleet.spec
    own = engine.model_dump(mode="json", exclude_defaults=True, exclude={"replicas"})
    pull, key = list(spec.image_pull_secrets), spec.gateway.api_key_secret
    return {"engine": own, "model": spec.model, "apiKeySecret": key, "imagePullSecrets": pull}


_SHM: Final = "shm"
_SGLANG: Final = "sglang.launch_server"
_ANSWERS: Final = """\
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15) as engine:
    engine.sendall(b"GET /model_info HTTP/1.0\\r\\n\\r\\n")
    sys.exit(not engine.recv(1))
"""
_CONTAINER: Final[Manifest] = {
    "name": CONTAINER,
    "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
    "startupProbe": get("/health", "http", period=_PERIOD, timeout=5, failures=LOADED_WITHIN // _PERIOD),
    # /health waits for a generation: in a pause, and while weights are loaded, there is none. What hangs within SGLang
    # is ended by its own watchdog.
    "livenessProbe": get("/model_info", "http", period=_PERIOD, timeout=20, failures=6),
    "readinessProbe": get("/health", "http", period=5, timeout=20, failures=2),
    "lifecycle": {"preStop": {"sleep": {"seconds": LEAVING}}},
    "terminationMessagePolicy": "FallbackToLogsOnError",
}


def _simulated(engine: EngineSpec, operator: OperatorSettings) -> Manifest:
    """It uses no GPU and answers as SGLang does."""
    return {
        "image": operator.simulated_engine_image,
        "args": commands.simulated_engine(engine.simulated, host="0.0.0.0", port=ENGINE_PORT, model=SIMULATED_MODEL),
        "volumeMounts": [{"name": TMP, "mountPath": "/tmp"}],
    }


def _sglang(fleet: Fleet, engine: EngineSpec, operator: OperatorSettings) -> Manifest:
    given: dict[str, object] = {
        "--model-path": fleet.spec.model,
        "--served-model-name": fleet.spec.model,
        "--host": "0.0.0.0",
        "--port": ENGINE_PORT,
    }
    return {
        "image": operator.engine_image,
        "command": commands.module("python3", _SGLANG),
        "args": [*commands.flags(given), *engine.args],
        "resources": {"limits": {GPU: str(engine.gpus)}} if engine.gpus else {},
        "volumeMounts": [{"name": TMP, "mountPath": "/tmp"}, {"name": _SHM, "mountPath": "/dev/shm"}],
    }


def _loosen(pod: Manifest) -> None:
    """SGLang's images run as root and write beside themselves; its processes talk to each other by shared memory."""
    container = pod["containers"][0]
    pod["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
    container["securityContext"] = {"allowPrivilegeEscalation": False}
    pod["volumes"].append({"name": _SHM, "emptyDir": {"medium": "Memory"}})


def _asking(module: str) -> list[str]:
    """The command of an engine that asks for the key of the mounted file."""
    return commands.module("python3", module, [KeyFlag(flag="--api-key", file=ENGINE_KEY.file)])


def _ask_for_key(pod: Manifest, secret: str, *, command: Sequence[str]) -> None:
    container = pod["containers"][0]
    pod["volumes"].append(ENGINE_KEY.volume(secret))
    container["volumeMounts"].append(ENGINE_KEY.mount())
    container["command"] = list(command)
    # A probe has no key, and 401 would end the engine; whatever is answered shows that it is not stuck.
    alive = {name: value for name, value in container["livenessProbe"].items() if name != "httpGet"}
    container["livenessProbe"] = {**alive, "exec": {"command": ["python3", "-c", _ANSWERS, str(ENGINE_PORT)]}}
