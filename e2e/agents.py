"""Programs that run inside the cluster, beside a fleet: agents with the stock `openai` client, and trainers."""

import json
import secrets
from pathlib import Path
from typing import Any, Final

from toolchain.kubernetes.failures import ClusterError, CommandFailed
from toolchain.kubernetes.kubectl import Kubectl

KEYS: Final = "/etc/rolloutfleet/keys"
"""Where the trainer's library looks for them."""
SCRIPTS: Final = Path(__file__).parent / "scripts"


def start(
    namespace: Kubectl,
    script: str,
    *arguments: str,
    fleet: str,
    image: str,
    knows_namespace: bool = False,
    node: str | None = None,
) -> str:
    """Start the program of `e2e/scripts` in a pod of its own, with the fleet's admin keys at hand; the Job's name.

    A pod knows its namespace from the token of its service account, which most pods here are not given. `node`: where
    it runs.
    """
    name = f"{Path(script).stem}-{secrets.token_hex(3)}"
    text = (SCRIPTS / script).read_text()
    namespace("create", "-f", "-", stdin=json.dumps(_config(name, text)))
    job = _job(name, list(arguments), fleet, image, token=knows_namespace)
    if node is not None:
        job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    namespace("create", "-f", "-", stdin=json.dumps(job))
    return name


def finish(namespace: Kubectl, name: str, *, seconds: float = 300) -> Any:
    """The last line that it printed, which is JSON. Raises ClusterError with its log where it failed."""
    try:
        namespace("wait", f"job/{name}", "--for=condition=Complete", f"--timeout={seconds:g}s", seconds=seconds + 10)
    except CommandFailed as error:
        log = namespace("logs", f"job/{name}", "--tail=40")
        raise ClusterError(f"{name} did not end well: {error}\n{log}") from None
    return json.loads(namespace("logs", f"job/{name}").strip().splitlines()[-1])


def run(namespace: Kubectl, script: str, *arguments: str, fleet: str, image: str, seconds: float = 300) -> Any:
    """`start`, then `finish`."""
    return finish(namespace, start(namespace, script, *arguments, fleet=fleet, image=image), seconds=seconds)


def _config(name: str, script: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"script.py": script}}


def _job(name: str, arguments: list[str], fleet: str, image: str, *, token: bool) -> dict[str, Any]:
    container = {
        "name": "script",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "/script/script.py", fleet, *arguments],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "script", "mountPath": "/script"}, {"name": "keys", "mountPath": KEYS}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": token,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": "script", "configMap": {"name": name}},
            {"name": "keys", "secret": {"secretName": f"{fleet}-keys"}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": spec}},
    }
