"""What all requests and replies of the native API share: headers, numbers, errors, and who an answer covers."""

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"
SHOULD_RETRY_HEADER: Final = "x-should-retry"
JSON_MEDIA_TYPE: Final = "application/json"
TENSORS_MEDIA_TYPE: Final = "application/octet-stream"

YEAR: Final = 365 * 86400.0

Id = Annotated[str, Field(min_length=1, max_length=128)]
Whole = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Versions are exported as int32, so no whole number here is larger."""
AtLeastOne = Annotated[int, Field(ge=1)]
AboveZero = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=100 * YEAR)]


def _each_once(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise ValueError("names something twice")
    return names


EachOnce = AfterValidator(_each_once)
"""Of a list of names."""


class Request(BaseModel):
    """What a client sends; anything unexpected in it is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_by_name=True)


class Reply(BaseModel):
    """What a proxy answers; a reader takes what it knows."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True)


class ErrorDetail(Reply):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    reason: str | None = None
    """Of a session that was reclaimed: why."""
    dumps: list[str] | None = None
    """Files that hold what it left."""


class Failed(Reply):
    """A proxy that an answer does not cover, and why."""

    ordinal: int
    error: ErrorDetail


class Refusal(Reply):
    """An error's body. Some say beside it how things stand."""

    error: ErrorDetail
    run: int | None = None
    version: int | None = None
    epoch: int | None = None
    paused: bool | None = None
    would_drop: dict[str, int] | None = None
    engines_failed: dict[str, str] | None = None
    ordinals: list[int] | None = None
    failed: list[Failed] | None = None
    missing: list[str] | None = None
    """Shards."""


class Answered(Reply):
    """Every answer names the ordinals that it covers."""

    ordinals: list[int] = Field(default_factory=list)


class Covering(Answered):
    """An answer that may be a whole fleet's names those that failed, too."""

    failed: list[Failed] = Field(default_factory=list)


class Paged(Covering):
    """A page of a list; `cursor` is None on the last one."""

    cursor: str | None = None
