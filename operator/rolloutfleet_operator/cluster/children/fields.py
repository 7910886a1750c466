"""Fields of the spec that Kubernetes' own types fill: what of them is understood here."""

from collections.abc import Collection, Mapping
from typing import Any


class FieldInvalid(Exception):
    """A field that can't be used; the message names it by its path."""


def check_names(given: Mapping[str, Any], known: Mapping[str, type], path: str) -> None:
    """Raises FieldInvalid for a name that is not known, and for a value of another type."""
    for name, value in given.items():
        if name not in known:
            raise FieldInvalid(f"{path}.{name}: no such field; known here: {_listed(known)}")
        if not isinstance(value, known[name]):
            raise FieldInvalid(f"{path}.{name}: must be {_KINDS[known[name]]}, not {value!r}")


_KINDS: Mapping[type, str] = {str: "text", list: "a list", dict: "a mapping"}


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
