"""Pod templates of Deployments: one keeps the template that it was given until it is due for another.

Its annotations say what it was given: the template, and the part of the spec that is its own. So an operator of another
release, which makes another template of the same spec, can apply all of a Deployment but that.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import CONTROL_KEY_HASH, TEMPLATE_HASH
from rolloutfleet_operator.cluster.children.pods import Manifest
from rolloutfleet_operator.policy.observed import GROUP

TEMPLATE: Final = f"{GROUP}/template"
"""The template that it was given, as JSON: what the API server shows has its own defaults and others' edits in it."""
PART_HASH: Final = f"{GROUP}/spec-hash"
"""Of the part of the spec that is its own."""
UPDATING_SINCE: Final = f"{GROUP}/updating-since"
"""When its pods began to be replaced; only there until all are."""


def noted(manifest: Manifest, part: object) -> Manifest:
    """With notes of its template, and of that part of the spec."""
    template = manifest["spec"]["template"]
    notes = {
        TEMPLATE: json.dumps(template, sort_keys=True, separators=(",", ":")),
        TEMPLATE_HASH: content_hash(template),
        PART_HASH: content_hash(part),
    }
    return _with_notes(manifest, notes)


def kept(manifest: Manifest, live: Manifest) -> Manifest:
    """With the template that the live one was given, and the notes of that.

    One that an operator without these notes made has its template as the API server shows it, and is taken to have been
    given it for the spec as it is now.
    """
    given = _read(note(live, TEMPLATE))
    notes = {name: None if given is None else note(live, name) for name in (TEMPLATE, TEMPLATE_HASH)}
    part = note(live, PART_HASH) or note(manifest, PART_HASH)
    made = _with_notes(manifest, {**notes, PART_HASH: part})
    return {**made, "spec": {**made["spec"], "template": given or live["spec"]["template"]}}


def _read(text: str | None) -> Manifest | None:
    """None also for what somebody else has written there."""
    try:
        read = None if text is None else json.loads(text)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def updating(manifest: Manifest, since: str | None) -> Manifest:
    """With a note of when its pods began to be replaced, or without one."""
    return _with_notes(manifest, {UPDATING_SINCE: since})


def note(of: Manifest, name: str) -> str | None:
    """An annotation; None where there is none."""
    found: str | None = (of["metadata"].get("annotations") or {}).get(name)
    return found


def control_key_of(deployment: Manifest) -> str | None:
    """The hash of the key of the control plane that its pods were given."""
    return note(deployment["spec"]["template"], CONTROL_KEY_HASH)


def is_outdated(live: Manifest, wanted: Manifest) -> bool:
    """True where it was given another template, as far as is known."""
    return note(live, TEMPLATE_HASH) != note(wanted, TEMPLATE_HASH)


def part_differs(live: Manifest, wanted: Manifest) -> bool:
    """True where its own part of the spec is known to have changed since it was given its template."""
    return note(live, PART_HASH) not in (None, note(wanted, PART_HASH))


def _with_notes(manifest: Manifest, notes: Mapping[str, str | None]) -> Manifest:
    """None takes one away."""
    meta: dict[str, Any] = manifest["metadata"]
    annotations = {**(meta.get("annotations") or {}), **notes}
    return {**manifest, "metadata": {**meta, "annotations": {k: v for k, v in annotations.items() if v is not None}}}
