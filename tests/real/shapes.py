"""The shape of JSON values: fields and types without the values, so that two answers can be compared."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

JSON = Any
Shape = Any
ANY = "anything"
"""Stands in a shape for what is not compared."""


def shape_of(value: JSON) -> Shape:
    """Objects keep their fields. Lists of alike elements become `[shape]`, others a tuple, one shape an element."""
    if isinstance(value, dict):
        return {name: shape_of(field) for name, field in value.items()}
    if isinstance(value, list):
        shapes = [shape_of(element) for element in value]
        if not shapes:
            return []
        return [shapes[0]] if all(shape == shapes[0] for shape in shapes) else tuple(shapes)
    return kind_of(value)


def kind_of(value: JSON) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return names[type(value)]


def shape_of_stream(events: list[JSON]) -> Shape:
    """What follows what: runs of alike events count once, however many there are."""
    shapes = (event if isinstance(event, str) else shape_of(event) for event in events)
    return tuple(shape for shape, _ in groupby(shapes, key=lambda shape: json.dumps(shape, sort_keys=True)))


def differences(expected: Shape, seen: Shape, *, path: str = "") -> Iterator[str]:
    """One line for each place where `seen` is not as `expected`."""
    if ANY in (expected, seen):
        return
    if isinstance(expected, dict) and isinstance(seen, dict):
        for name in sorted(expected.keys() | seen.keys()):
            yield from field_differences(expected, seen, name, path=f"{path}.{name}" if path else name)
    elif isinstance(expected, list | tuple) and type(expected) is type(seen) and len(expected) == len(seen):
        for index, (wanted, got) in enumerate(zip(expected, seen, strict=True)):
            yield from differences(wanted, got, path=f"{path}[{index}]" if isinstance(expected, tuple) else f"{path}[]")
    elif expected != seen:
        yield f"{path}: real {brief(expected)}, simulated {brief(seen)}"


def field_differences(
    expected: Mapping[str, Shape], seen: Mapping[str, Shape], name: str, *, path: str
) -> Iterator[str]:
    if name not in seen:
        yield f"{path}: real {brief(expected[name])}, simulated has no such field"
    elif name not in expected:
        yield f"{path}: simulated {brief(seen[name])}, real has no such field"
    else:
        yield from differences(expected[name], seen[name], path=path)


def brief(shape: Shape) -> str:
    text = json.dumps(shape)
    return text if len(text) <= 200 else text[:200] + "…"
