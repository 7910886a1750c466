"""The generated Secret with the admin keys, and their rotation.

Keys stand one a line. All are taken, and with the first one proxies call each other. A new `auth.rotate.id` adds a key
in steps, so that at no time somebody is called with a key that it has not read yet:

    [old] → [old, new], until every proxy takes the new one → [new, old], for `auth.overlap` → [new]
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rolloutfleet_operator.cluster.children.key_files import secret_with, text_in
from rolloutfleet_operator.cluster.children.names import KEYS_FILE, ROTATED_AT, ROTATION_ID, Component, Fleet
from rolloutfleet_operator.cluster.children.pods import Manifest

PREFIX: Final = "rfa-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the Secret holds, and which rotation it is about."""

    keys: tuple[str, ...]
    rotation: str = ""
    """The `auth.rotate.id` that the newest key was made for."""
    leading_since: datetime | None = None
    """Since when the newest key stands first; None while it stands last, and where no key was rotated."""

    @property
    def newest(self) -> str:
        """The key that has to be taken by every proxy before it may stand first."""
        return self.keys[-1] if self.leading_since is None else self.keys[0]


def new_key() -> str:
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


def read(secret: Mapping[str, Any]) -> Keys | None:
    """What a Secret from the API server holds; None where it holds no key."""
    keys = tuple(line.strip() for line in text_in(secret, KEYS_FILE).splitlines() if line.strip())
    if not keys:
        return None
    annotations = secret["metadata"].get("annotations") or {}
    return Keys(
        keys=keys, rotation=annotations.get(ROTATION_ID, ""), leading_since=_moment(annotations.get(ROTATED_AT))
    )


def wanted(fleet: Fleet, there: Keys | None, *, taken: bool, now: datetime, fresh: str) -> Keys:
    """The keys that should be in the Secret now.

    `taken` says whether every proxy takes the newest key; `fresh` is what becomes a key where a new one is due.
    """
    asked = fleet.spec.auth.rotate.id if fleet.spec.auth.rotate is not None else ""
    if there is None:
        return Keys(keys=(fresh,), rotation=asked)
    if asked and asked != there.rotation:
        return Keys(keys=(there.keys[0], fresh), rotation=asked)
    if len(there.keys) < 2:
        return there
    if there.leading_since is None:
        return replace(there, keys=(there.newest, there.keys[0]), leading_since=now) if taken else there
    return replace(there, keys=there.keys[:1], leading_since=None) if overlap_ends(fleet, there) <= now else there


def overlap_ends(fleet: Fleet, keys: Keys) -> datetime:
    """When the older key stops being valid."""
    assert keys.leading_since is not None
    return keys.leading_since + timedelta(seconds=fleet.spec.auth.overlap)


def secret(fleet: Fleet, keys: Keys) -> Manifest:
    annotations = {ROTATION_ID: keys.rotation} if keys.rotation else {}
    if keys.leading_since is not None:
        annotations[ROTATED_AT] = keys.leading_since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = "".join(f"{key}\n" for key in keys.keys)
    return secret_with(fleet, fleet.own_keys, Component.PROXY, KEYS_FILE, text, annotations)


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
