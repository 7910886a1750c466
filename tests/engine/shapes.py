"""The shape of JSON values: fields and types without the values, so that two answers can be compared."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

JSON = Any
Shape = Any
ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where two shapes differ, as `body.loads[].queues`, and what each has there."""

    path: str
    real: Shape
    simulated: Shape

    def __str__(self) -> str:
        return f"{self.path}: real {brief(self.real)}, simulated {brief(self.simulated)}"


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
    shapes = [event if isinstance(event, str) else shape_of(event) for event in events]
    runs = groupby(shapes, key=lambda shape: json.dumps(shape, sort_keys=True))
    return tuple(next(run) for _, run in runs)


def differences(real: Shape, simulated: Shape, *, path: str) -> Iterator[Difference]:
    if isinstance(real, dict) and isinstance(simulated, dict):
        for name in sorted(real.keys() | simulated.keys()):
            yield from differences(real.get(name, ABSENT), simulated.get(name, ABSENT), path=f"{path}.{name}")
    elif isinstance(real, tuple) and isinstance(simulated, tuple) and len(real) == len(simulated):
        for index, (one, other) in enumerate(zip(real, simulated, strict=True)):
            yield from differences(one, other, path=f"{path}[{index}]")
    elif isinstance(real, list) and isinstance(simulated, list) and len(real) == len(simulated) == 1:
        yield from differences(real[0], simulated[0], path=f"{path}[]")
    elif real != simulated:
        yield Difference(path, real, simulated)


def brief(shape: Shape) -> str:
    text = json.dumps(shape)
    return text if len(text) <= 200 else text[:200] + "…"
