"""The generated Secret with the key of the gateways' control plane, by which they are told of engines.

The operator tells them, and proxies ask them which engines there are. It is the gateways' for as long as they run: a
new one, after the Secret was deleted, brings new gateways.
"""

import base64
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from rolloutfleet_operator.cluster.children.names import CONTROL_KEY_FILE, CONTROL_KEY_PATH, Component, Fleet, metadata
from rolloutfleet_operator.cluster.children.pods import Manifest

VOLUME: Final = "control-key"
FILE: Final = PurePosixPath(CONTROL_KEY_PATH, CONTROL_KEY_FILE)


def read(secret: Mapping[str, Any]) -> str | None:
    """The key in a Secret from the API server; None where it holds none."""
    try:
        text = base64.b64decode(secret.get("data", {}).get(CONTROL_KEY_FILE, ""), validate=True).decode().strip()
    except ValueError:
        return None
    return text or None


def secret(fleet: Fleet, key: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(fleet, fleet.control_key, Component.GATEWAY),
        "type": "Opaque",
        "data": {CONTROL_KEY_FILE: base64.b64encode(f"{key}\n".encode()).decode()},
    }


def volume(fleet: Fleet) -> Manifest:
    return {"name": VOLUME, "secret": {"secretName": fleet.control_key}}


def mount() -> Manifest:
    return {"name": VOLUME, "mountPath": CONTROL_KEY_PATH, "readOnly": True}
