"""The project's own helm, and what it makes of the chart."""

import functools
import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

import yaml
from tests.unit.charts.values import CHART
from toolchain.kubernetes import binaries

KUBERNETES: Final = "1.34.4"
NAMESPACE: Final = "rolloutfleet-system"


class HelmFailed(Exception):
    """Helm refused; the message is its own."""


@functools.cache
def helm(*words: str, said: str | None = None) -> str:
    """Raises HelmFailed."""
    done = subprocess.run([binaries.program("helm"), *words], input=said, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HelmFailed(done.stderr)
    return done.stdout


def template(values: Mapping[str, Any] | None = None, *, release: str = "rolloutfleet") -> str:
    """The chart's manifests, as helm writes them."""
    return helm(
        *("template", release, str(CHART), "--kube-version", KUBERNETES, "--namespace", NAMESPACE, "--values", "-"),
        said=json.dumps(values or {}),
    )


def manifests(values: Mapping[str, Any] | None = None, *, release: str = "rolloutfleet") -> list[dict[str, Any]]:
    """The chart's manifests."""
    return [manifest for manifest in yaml.safe_load_all(template(values, release=release)) if manifest]


def of_kind(kind: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests(values) if manifest["kind"] == kind]


def the(kind: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The only manifest of that kind."""
    (manifest,) = of_kind(kind, values)
    return manifest
