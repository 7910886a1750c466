"""What a failed test's namespace had in it: read before the namespace goes."""

import shutil
from pathlib import Path

from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kubectl import Kubectl

LISTED = "pods,statefulsets,deployments,services,persistentvolumeclaims,poddisruptionbudgets,configmaps"


def collect(namespace: Kubectl, folder: Path) -> str:
    """Logs, events and objects as files in `folder`; pods and the last events as text."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pods = _said(namespace, "get", "pods", "--output", "wide")
    events = _said(namespace, "events")
    (folder / "pods.txt").write_text(pods + "\n" + _said(namespace, "describe", "pods"))
    (folder / "events.txt").write_text(events)
    (folder / "objects.yaml").write_text(_said(namespace, "get", LISTED, "--output", "yaml"))
    (folder / "fleets.yaml").write_text(_said(namespace, "get", "rolloutfleets", "--output", "yaml"))
    for line in pods.splitlines()[1:]:
        name = line.split()[0]
        logs = ("logs", name, "--all-containers", "--prefix")
        (folder / f"{name}.log").write_text(_said(namespace, *logs))
        (folder / f"{name}.previous.log").write_text(_said(namespace, *logs, "--previous"))
    return "\n".join([pods, *events.splitlines()[-15:]])


def _said(namespace: Kubectl, *words: str) -> str:
    try:
        return namespace(*words)
    except CommandFailed as error:
        return f"{error}\n"
