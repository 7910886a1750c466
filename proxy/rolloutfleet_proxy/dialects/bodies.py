"""A request's body, decoded to the type that a dialect has for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from rolloutfleet_proxy.dialects.mistakes import refused
from rolloutfleet_proxy.domain.errors import UnreadableJson

_UNKNOWN: Final = "Object contains unknown field"

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

BodyT = TypeVar("BodyT", bound=Struct)


class BodyReader(Generic[BodyT]):
    """Reads the bodies of one dialect.

    `form` is their type. `unused` are fields of it that nothing here has a use for; `instead` is what `refused` takes.
    """

    def __init__(self, form: type[BodyT], *, unused: Iterable[str], instead: Mapping[str, str] | None = None) -> None:
        strict = msgspec.defstruct(form.__name__, (), bases=(form,), forbid_unknown_fields=True)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(strict).decode
        """Most bodies have nothing that is unknown."""
        self._decode_leniently = msgspec.json.Decoder(form).decode
        self._known = frozenset(form.__struct_fields__)
        self._unused = unused
        self._instead = instead or {}

    def read(self, body: bytes, ignored: list[str]) -> BodyT:
        """Adds to `ignored` what is unknown or unused. Raises DomainError that names the field at fault."""
        try:
            parsed = self._decoded(body, ignored)
        except msgspec.ValidationError as error:
            raise refused(error, instead=self._instead) from None
        except (ValueError, RecursionError) as error:
            raise UnreadableJson(error) from None
        ignored += given(parsed, self._unused)
        return parsed

    def _decoded(self, body: bytes, ignored: list[str]) -> BodyT:
        try:
            known: BodyT = self._decode(body)
            return known
        except msgspec.ValidationError as error:
            if not str(error).startswith(_UNKNOWN):
                raise
        parsed = self._decode_leniently(body)
        fields = _decode_fields(body).items()
        ignored += [name for name, value in fields if name not in self._known and bytes(value) != b"null"]
        return parsed


def given(body: Struct, names: Iterable[str]) -> dict[str, Any]:
    """Those of the fields that are not null."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}
