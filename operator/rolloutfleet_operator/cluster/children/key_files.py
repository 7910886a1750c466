"""Keys that pods find in a file: the engines', and that of the gateways' control plane.

By the latter gateways are told of engines, and proxies ask them which there are. It is the gateways' for as long as
they run: a new one, after its Secret was deleted, brings new gateways.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from rolloutfleet_operator.cluster.children.names import (
    CONTROL_KEY_FILE,
    CONTROL_KEY_PATH,
    ENGINE_KEY_FILE,
    ENGINE_KEY_PATH,
    Component,
    Fleet,
    child,
)
from rolloutfleet_operator.cluster.children.pods import Manifest


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key in a Secret, as pods mount it."""

    name: str
    """Of the volume."""
    file: PurePosixPath

    def volume(self, secret: str) -> Manifest:
        return {"name": self.name, "secret": {"secretName": secret}}

    def mount(self) -> Manifest:
        return {"name": self.name, "mountPath": str(self.file.parent), "readOnly": True}

    def read(self, secret: Mapping[str, Any] | None) -> str | None:
        """The key in a Secret from the API server; None where it holds none."""
        return text_in(secret, self.file.name) or None


ENGINE_KEY: Final = KeyFile("engine-key", PurePosixPath(ENGINE_KEY_PATH, ENGINE_KEY_FILE))
CONTROL_KEY: Final = KeyFile("control-key", PurePosixPath(CONTROL_KEY_PATH, CONTROL_KEY_FILE))


def text_in(secret: Mapping[str, Any] | None, file: str) -> str:
    """What a Secret from the API server has under that name; empty where it has nothing."""
    try:
        return base64.b64decode((secret or {}).get("data", {}).get(file, ""), validate=True).decode().strip()
    except ValueError:
        return ""


def secret_with(
    fleet: Fleet, name: str, component: Component, file: str, text: str, annotations: Mapping[str, str] | None = None
) -> Manifest:
    """A Secret of the fleet's own."""
    data = {file: base64.b64encode(text.encode()).decode()}
    return child(fleet, "Secret", name, component, annotations, type="Opaque", data=data)


def control_key_secret(fleet: Fleet, key: str) -> Manifest:
    return secret_with(fleet, fleet.control_key, Component.GATEWAY, CONTROL_KEY_FILE, f"{key}\n")
