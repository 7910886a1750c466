"""What is written at the API server, counted by its own metrics."""

import re
from collections import Counter
from typing import Final

from toolchain.kubernetes.kubectl import Kubectl

_LINE: Final = re.compile(r"apiserver_request_total\{(?P<labels>[^}]*)\} (?P<number>\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_WRITES: Final = frozenset(("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"))
LEASES: Final = "leases"
_NOT_KEPT: Final = frozenset(
    ("tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectreviews", "serviceaccounts/token")
)
"""Questions in the form of a write."""
_OF_THE_CLUSTER: Final = frozenset(("nodes", "nodes/status", "endpoints"))
"""Kubelets say how they are, and the test cluster's provisioner of volumes keeps its lock in an Endpoints object."""


def counted(cluster: Kubectl) -> Counter[str]:
    """Requests so far that wrote something, by verb and resource; what a cluster without fleets does is left out."""
    found: Counter[str] = Counter()
    for line in _LINE.finditer(cluster("get", "--raw", "/metrics")):
        labels = dict(_LABEL.findall(line["labels"]))
        resource = labels["resource"] + (f"/{labels['subresource']}" if labels["subresource"] else "")
        if labels["verb"] in _WRITES and resource and resource not in _NOT_KEPT | _OF_THE_CLUSTER:
            found[f"{labels['verb']} {resource}"] += int(float(line["number"]))
    return found


def since(cluster: Kubectl, earlier: Counter[str]) -> dict[str, int]:
    """What has been written since then, but for Leases."""
    return {what: number for what, number in (counted(cluster) - earlier).items() if not what.endswith(f" {LEASES}")}
