"""The engines' key: a Secret that gateways, engines and proxies mount."""

from pathlib import PurePosixPath
from typing import Final

from rolloutfleet_operator.cluster.children.names import ENGINE_KEY_FILE, ENGINE_KEY_PATH
from rolloutfleet_operator.cluster.children.pods import Manifest

VOLUME: Final = "engine-key"
FILE: Final = PurePosixPath(ENGINE_KEY_PATH, ENGINE_KEY_FILE)


def volume(secret: str) -> Manifest:
    return {"name": VOLUME, "secret": {"secretName": secret}}


def mount() -> Manifest:
    return {"name": VOLUME, "mountPath": ENGINE_KEY_PATH, "readOnly": True}
