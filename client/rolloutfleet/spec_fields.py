"""The types of the resource's fields, and how their rules stand in the CRD."""

from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel

from rolloutfleet.units import DURATION_SCHEMA, QUANTITY_SCHEMA, Duration, Quantity

LONGEST_MODEL_NAME: Final = 512

CEL_RULES: Final = "x-kubernetes-validations"
"""Under this key of a model's schema stand its rules as the API server checks them, beside the validators that check
the same for a file. `tests/unit/operator` holds them to the CRD."""


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Schema extras with (rule, message) pairs in Kubernetes' Common Expression Language."""
    return {CEL_RULES: [{"rule": rule, "message": message} for rule, message in rules]}


def cel_bytes(amount: str) -> str:
    """A CEL expression for an amount that is text or a number."""
    return f"quantity(string({amount}))"


_ABOVE_ZERO = cel(("string(self).matches('[1-9]')", "must be above 0"))

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
AtLeastOne = Annotated[int, Field(ge=1, le=2**31 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
ObjectName = Annotated[Name, Field(pattern=f"^{_SUBDOMAIN}$")]
"""The name of an object of Kubernetes, a DNS subdomain (RFC 1123); nothing that could lead into another namespace."""
LabelName = Annotated[str, Field(pattern=f"^({_SUBDOMAIN}/)?{_LABEL}$", max_length=253 + 1 + 63)]
Labels = dict[LabelName, Annotated[str, Field(pattern=f"^({_LABEL})?$")]]
ModelName = Annotated[str, Field(min_length=1, max_length=LONGEST_MODEL_NAME)]
PositiveDuration = Annotated[Duration, Field(gt=0), WithJsonSchema(DURATION_SCHEMA | _ABOVE_ZERO)]
PositiveQuantity = Annotated[Quantity, Field(gt=0), WithJsonSchema(QUANTITY_SCHEMA | _ABOVE_ZERO)]
KubernetesObject = dict[str, JsonValue]


def check_address(url: str) -> str:
    """An http(s) address with a host and no query, without a trailing slash; ValueError otherwise."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError as error:
        raise ValueError(f"{url!r} is not a valid address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise ValueError(f"{url!r} is not a valid address; write it like http://10.0.0.5:30000")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r}: an address has no query and no fragment")
    return url.rstrip("/")


Address = Annotated[
    str,
    Field(max_length=2048),
    AfterValidator(check_address),
    WithJsonSchema({"type": "string", "maxLength": 2048, "pattern": r"^https?://[^/?#\s]+(/[^?#\s]*)?$"}),
]


EACH_ONCE = Field(json_schema_extra={"x-kubernetes-list-type": "set"})


class ResourceModel(BaseModel):
    """What all parts of the resource share, its spec's and its status's."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
        use_attribute_docstrings=True,
    )


class SpecModel(ResourceModel):
    """Unknown fields are errors, and nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def check_amount(value: object) -> str | int | float:
    """An amount of any resource, as Kubernetes writes it: text like `500m`, or a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("an amount is text like 500m or 4Gi, or a number")
    return value


ResourceAmount = Annotated[
    str | int | float,
    PlainValidator(check_amount, json_schema_input_type=str | int),
    WithJsonSchema(
        {"anyOf": [{"type": "integer"}, {"type": "string"}], "maxLength": 64, "x-kubernetes-int-or-string": True}
    ),
]
ResourceAmounts = Annotated[dict[str, ResourceAmount], Field(max_length=64)]
