"""A request's body, decoded to the type that a dialect has for it, and the fields that several have. Pure."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta as Rule
from msgspec import Struct

from rolloutfleet.spec_fields import LONGEST_MODEL_NAME
from rolloutfleet_proxy.dialects.base import MAX_INT32, Reading
from rolloutfleet_proxy.dialects.half_characters import half_character, mended
from rolloutfleet_proxy.dialects.mistakes import refused
from rolloutfleet_proxy.domain.errors import InvalidParameter, UnreadableJson

MAX_STOPS: Final = 32
"""SGLang's own bound (`sampling/sampling_params.py`)."""
MAX_TOP_LOGPROBS: Final = 20
"""The OpenAI API's own bound."""

TokenCount = Annotated[int, Rule(ge=1, le=MAX_INT32)]
StopString = Annotated[str, Rule(min_length=1, max_length=1000)]
_Penalty = Annotated[float, Rule(ge=-2, le=2)]

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_LEAST_TOP_P: Final = 1e-6
"""Stands for 0, which SGLang refuses: the likeliest token alone. No token that is the likeliest has less."""
_UNKNOWN: Final = "Object contains unknown field"

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape of half a character, mostly next to that of its other half."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Body(Struct, kw_only=True):
    """What all APIs have."""

    model: Annotated[str, Rule(min_length=1, max_length=LONGEST_MODEL_NAME)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Rule(ge=0, le=100)] | None = None
    top_p: Annotated[float, Rule(ge=0, le=1)] | None = None

    def sampling(self) -> dict[str, Any]:
        """SGLang's parameters of the body. Raises InvalidParameter."""
        sampling = {name: value for name in _SAMPLING if (value := getattr(self, name, None)) is not None}
        if self.top_p == 0:
            sampling["top_p"] = _LEAST_TOP_P
        return sampling


class OpenAIBody(Body, kw_only=True):
    """What both of OpenAI's have, and what SGLang takes beside that in either."""

    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    top_logprobs: Annotated[int, Rule(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_token_ids: bool | None = None

    top_k: Annotated[int, Rule(ge=-1, le=MAX_INT32)] | None = None
    min_p: Annotated[float, Rule(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Rule(gt=0, le=2)] | None = None
    stop: Annotated[list[StopString], Rule(max_length=MAX_STOPS)] | StopString | None = None

    moderation: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def template_kwargs(self, effort: str | None, *, at: str) -> dict[str, Any] | None:
        """`chat_template_kwargs`, and the effort among them; None for neither. Raises InvalidParameter for the effort,
        which is the field `at`, where they have another."""
        kwargs = self.chat_template_kwargs
        if effort is None:
            return kwargs or None
        if kwargs and kwargs.get("reasoning_effort", effort) != effort:
            raise InvalidParameter(at, "chat_template_kwargs has another reasoning_effort.")
        return {**(kwargs or {}), "reasoning_effort": effort}

    def sampling(self) -> dict[str, Any]:
        if self.top_k == 0:
            raise InvalidParameter("top_k", "top_k is -1 (off) or at least 1.")
        return super().sampling()


BodyT = TypeVar("BodyT", bound=Body)


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

    def read(self, body: bytes, reading: Reading, ignored: list[str]) -> BodyT:
        """Adds to `ignored` what is unknown or unused, and texts with half a character, which is read as U+FFFD.

        A byte order mark is passed over. Raises DomainError that names the field at fault.
        """
        body = body.removeprefix(BOM_UTF8)
        try:
            return self._read(body, ignored)
        except (ValueError, RecursionError) as error:
            body, halves = _mended(body, error)
        if halves and reading.strict:
            raise half_character(halves[0])
        ignored += halves
        try:
            return self._read(body, ignored)
        except (ValueError, RecursionError) as error:
            raise UnreadableJson(error) from None

    def _read(self, body: bytes, ignored: list[str]) -> BodyT:
        """Raises DomainError for what is no such body, ValueError and RecursionError for what can't be decoded."""
        try:
            try:
                parsed: BodyT = self._decode(body)
            except msgspec.ValidationError as error:
                if not str(error).startswith(_UNKNOWN):
                    raise
                parsed = self._decode_leniently(body)
                fields = _decode_fields(body).items()
                ignored += [name for name, value in fields if name not in self._known and bytes(value) != b"null"]
        except msgspec.ValidationError as error:
            raise refused(error, instead=self._instead) from None
        ignored += [name for name in self._unused if getattr(parsed, name) is not None]
        return parsed


def _mended(body: bytes, error: Exception) -> tuple[bytes, list[str]]:
    """Raises UnreadableJson for the decoder's error, unless it may be about half a character, and DomainError."""
    if not isinstance(error, UnicodeDecodeError) and _HALF.search(body) is None:
        raise UnreadableJson(error)
    try:
        return mended(body)
    except (ValueError, RecursionError):
        raise UnreadableJson(error) from None
