"""Keys that pods read from files: the admin keys and their rotation, the engines', that of the gateways' control plane.

There is one admin key per line. All are valid, and proxies call each other with the first. A new `auth.rotate.id` adds
a key in steps, so that no proxy is ever called with a key that it has not read yet:

    [old] → [old, new], until every proxy takes the new one → [new, old], for `auth.overlap` → [new]

Another id waits until the last step.

With the key of the control plane the operator adds engines to gateways, and proxies list them. A gateway keeps it for
as long as it runs: a new key, after its Secret was deleted, replaces the gateways' pods.
"""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from rolloutfleet_operator.cluster.children.names import ROTATED_AT, ROTATION_ID, Component, Fleet, child
from rolloutfleet_operator.cluster.children.pods import Manifest
from rolloutfleet_operator.policy.observed import seconds_of, text_of

PREFIX: Final = "rfa-"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key in a Secret, as pods mount it."""

    name: str
    """Of the volume."""
    file: PurePosixPath
    """Its name is that within the Secret, too."""

    def volume(self, secret: str) -> Manifest:
        return {"name": self.name, "secret": {"secretName": secret}}

    def mount(self) -> Manifest:
        return {"name": self.name, "mountPath": str(self.file.parent), "readOnly": True}

    def read(self, secret: Mapping[str, Any] | None) -> str | None:
        """The text in a Secret from the API server; None where it holds none, or something else."""
        try:
            data = (secret or {}).get("data", {}).get(self.file.name, "")
            return base64.b64decode(data, validate=True).decode().strip() or None
        except ValueError:
            return None

    def secret(
        self, fleet: Fleet, name: str, component: Component, text: str, annotations: Mapping[str, str] | None = None
    ) -> Manifest:
        """A Secret of the fleet's own."""
        data = {self.file.name: base64.b64encode(text.encode()).decode()}
        return child(fleet, "Secret", name, component, annotations, type="Opaque", data=data)


ADMIN_KEYS: Final = KeyFile("keys", PurePosixPath("/etc/rolloutfleet/keys/admin-keys"))
ENGINE_KEY: Final = KeyFile("engine-key", PurePosixPath("/etc/rolloutfleet/engine-key/api-key"))
CONTROL_KEY: Final = KeyFile("control-key", PurePosixPath("/etc/rolloutfleet/control-key/control-key"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the Secret holds, and which rotation it is about."""

    keys: tuple[str, ...]
    rotation: str = ""
    """The `auth.rotate.id` that the newest key was made for."""
    leading_since: float | None = None
    """Since when the newest key stands first; None while it stands last, and where no key was rotated."""

    @property
    def newest(self) -> str:
        """The key that has to be taken by every proxy before it may stand first."""
        return self.keys[-1] if self.leading_since is None else self.keys[0]


def new_key() -> str:
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


def read(secret: Mapping[str, Any]) -> Keys | None:
    """What a Secret from the API server holds; None where it holds no key."""
    keys = tuple(line.strip() for line in (ADMIN_KEYS.read(secret) or "").splitlines() if line.strip())
    if not keys:
        return None
    annotations = secret["metadata"].get("annotations") or {}
    rotated_at = seconds_of(annotations.get(ROTATED_AT, "")) or None
    return Keys(keys=keys, rotation=annotations.get(ROTATION_ID, ""), leading_since=rotated_at)


def mounted_by(pod: Mapping[str, Any]) -> str:
    """The Secret with admin keys of a proxy's pod; it stays the same where `auth.secret` changes."""
    volumes = pod["spec"].get("volumes") or ()
    return next((each["secret"]["secretName"] for each in volumes if each["name"] == ADMIN_KEYS.name), "")


def wanted(fleet: Fleet, there: Keys | None, *, taken: bool, now: float, fresh: str) -> Keys:
    """The keys that should be in the Secret now.

    `taken` says whether every proxy takes the newest key; `fresh` is what becomes a key where a new one is due.
    """
    asked = fleet.spec.auth.rotate.id if fleet.spec.auth.rotate is not None else ""
    if there is None:
        return Keys(keys=(fresh,), rotation=asked)
    if asked and asked != there.rotation and there.leading_since is None:
        return Keys(keys=(there.keys[0], fresh), rotation=asked)
    if len(there.keys) < 2:
        return there
    if there.leading_since is None:
        return replace(there, keys=(there.newest, there.keys[0]), leading_since=now) if taken else there
    is_over = there.leading_since + fleet.spec.auth.overlap <= now
    return replace(there, keys=there.keys[:1], leading_since=None) if is_over else there


def secret(fleet: Fleet, keys: Keys) -> Manifest:
    annotations = {ROTATION_ID: keys.rotation} if keys.rotation else {}
    if keys.leading_since is not None:
        annotations[ROTATED_AT] = text_of(keys.leading_since)
    text = "".join(f"{key}\n" for key in keys.keys)
    return ADMIN_KEYS.secret(fleet, fleet.own_keys, Component.PROXY, text, annotations)
