"""What is wrong with a resource, settings or a request, in words that name the field and say what to write.

What another release says and this one has no field for can be taken out and named, so that the rest can be used.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from operator import getitem
from types import UnionType
from typing import Any, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_KINDS = {
    "must be text": ("string_type",),
    "must be a whole number": ("int_type", "int_from_float", "int_parsing"),
    "must be a whole number, and a smaller one": ("int_parsing_size",),
    "must be a number": ("float_type", "float_parsing"),
    "must be a finite number": ("finite_number",),
    "must be greater than {gt}": ("greater_than",),
    "must be greater than or equal to {ge}": ("greater_than_equal",),
    "must be less than {lt}": ("less_than",),
    "must be less than or equal to {le}": ("less_than_equal",),
    "must be a multiple of {multiple_of}": ("multiple_of",),
    "must be true or false": ("bool_type", "bool_parsing"),
    "must be null": ("none_required",),
    "must be text of whole characters": ("string_unicode",),
    "must have at least {min_length} characters": ("string_too_short",),
    "must have at most {max_length} characters": ("string_too_long",),
    "must match {pattern}": ("string_pattern_mismatch",),
    "must be a list": ("list_type",),
    "must have at least {min_length} entries": ("too_short",),
    "must have at most {max_length} entries": ("too_long",),
    "must be a path": ("path_type",),
    "must be {expected}": ("literal_error", "enum"),
    "must have one of {expected_tags} as its {discriminator}": ("union_tag_invalid",),
    "must say its {discriminator}": ("union_tag_not_found",),
    "must have texts for its names": ("invalid_key",),
    "must be a mapping": ("dict_type", "model_type", "model_attributes_type"),
}
"""Pydantic's kinds of error, by what is said of them."""
_SAID = {kind: said for said, kinds in _KINDS.items() for kind in kinds}
_ELSE = "must be of another form"
_LONGEST_VALUE = 60


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line for each error: the field's path, what is wrong with it, and the nearest name."""
    return [_line(details, model) for details in error.errors(include_url=False)]


def _line(details: ErrorDetails, model: type[BaseModel]) -> str:
    location = details["loc"]
    path = path_text(location)
    if details["type"] == "extra_forbidden":
        return f"{path}: no such field{_nearest(str(location[-1]), _names_at(model, location[:-1]))}"
    return f"{path}: {what_is_wrong(details)}"


def path_text(location: Sequence[int | str]) -> str:
    """`spec.gateway.engines.urls[1]`"""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text or "the whole"


def what_is_wrong(details: ErrorDetails) -> str:
    """`must be a whole number, not 'x'`: of a field that the caller names, in no other words than these."""
    kind = details["type"]
    if kind in ("value_error", "assertion_error"):
        return str(details["ctx"]["error"])
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "there is no such field: leave it out"
    if kind in ("string_too_short", "too_short") and details["ctx"]["min_length"] == 1:
        return "must not be empty"
    context = {name: str(value).replace("'", "") for name, value in details.get("ctx", {}).items()}
    return f"{_SAID.get(kind, _ELSE).format_map(context)}, not {_shortened(details['input'])}"


def _shortened(value: object) -> str:
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _nearest(name: str, known: Sequence[str]) -> str:
    by_folded = {_folded(candidate): candidate for candidate in known}
    matches = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=0.6)
    if matches:
        return f"; did you mean {by_folded[matches[0]]}?"
    return f"; known here: {', '.join(sorted(known))}" if known else ""


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _names_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """The names that a file may use at that place of the model; none where it is free-form."""
    annotation: Any = model
    for step in location:
        annotation = _step_into(annotation, step)
        if annotation is None:
            return []
    found = next((each for each in _unwrapped(annotation) if is_model(each)), None)
    if found is None:
        return []
    return [field.alias or name for name, field in found.model_fields.items()]


def _step_into(annotation: Any, step: int | str) -> Any:
    for each in _unwrapped(annotation):
        if is_model(each):
            for name, field in each.model_fields.items():
                if step in (name, field.alias):
                    return field.annotation
        elif get_origin(each) is list and isinstance(step, int):
            return get_args(each)[0]
    return None


def _unwrapped(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _unwrapped(each)
    elif hasattr(annotation, "__metadata__"):
        yield from _unwrapped(get_args(annotation)[0])
    else:
        yield annotation


def is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    """Whether it is a model, and nothing around one."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


Place = tuple[int | str, ...]


def without_unknown(
    given: Mapping[str, Any], model: type[BaseModel], *, choices: bool = False
) -> tuple[dict[str, Any], list[Place]]:
    """A copy without the fields that the model does not have, and where these stood. Other errors are left in.

    With `choices` it is also without those whose text is none of the choices that there are.
    """

    def is_unknown(problem: ErrorDetails) -> bool:
        newer = choices and problem["type"] == "literal_error" and isinstance(problem["input"], str)
        return newer or problem["type"] == "extra_forbidden"

    known = deepcopy(dict(given))
    try:
        model.model_validate(known)
    except ValidationError as error:
        unknown = [problem["loc"] for problem in error.errors() if is_unknown(problem)]
    else:
        return known, []
    for *path, last in unknown:
        within: Any = reduce(getitem, path, known)  # type: ignore[arg-type]
        del within[last]
    return known, unknown
