"""What is wrong with a resource or a settings file, in lines that name the field and say what to write."""

import difflib
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_KINDS = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "missing": "is missing",
}
_LONGEST_VALUE = 60


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line for each mistake: the field's path, what is wrong with it, and the nearest name."""
    return [_line(details, model) for details in error.errors(include_url=False)]


def _line(details: ErrorDetails, model: type[BaseModel]) -> str:
    location = details["loc"]
    path = path_text(location)
    if details["type"] == "extra_forbidden":
        return f"{path}: no such field{_nearest(str(location[-1]), _names_at(model, location[:-1]))}"
    return f"{path}: {_what(details)}"


def path_text(location: Sequence[int | str]) -> str:
    """`spec.gateway.engines.urls[1]`"""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text or "the whole"


def _what(details: ErrorDetails) -> str:
    kind, given = details["type"], details["input"]
    if kind == "value_error":
        return str(details["ctx"]["error"])
    if kind == "missing":
        return _KINDS[kind]
    if kind == "literal_error":
        wanted = f"must be {details['ctx']['expected']}".replace("'", "")
    elif kind in _KINDS:
        wanted = _KINDS[kind]
    else:
        wanted = details["msg"].replace("Input should be", "must be", 1)
    return f"{wanted}, not {_shortened(given)}"


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
    found = next((each for each in _unwrapped(annotation) if _is_model(each)), None)
    if found is None:
        return []
    return [field.alias or name for name, field in found.model_fields.items()]


def _step_into(annotation: Any, step: int | str) -> Any:
    for each in _unwrapped(annotation):
        if _is_model(each):
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


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
