"""What another release says and this one has no field for: taken out and named, so that the rest can be used."""

from collections.abc import Mapping
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any

from pydantic import BaseModel, ValidationError

Place = tuple[int | str, ...]


def without_unknown(given: Mapping[str, Any], model: type[BaseModel]) -> tuple[dict[str, Any], list[Place]]:
    """A copy without the fields that the model does not have, and where these stood. Other errors are left in."""
    known = deepcopy(dict(given))
    try:
        model.model_validate(known)
    except ValidationError as error:
        unknown = [problem["loc"] for problem in error.errors() if problem["type"] == "extra_forbidden"]
    else:
        return known, []
    for *path, last in unknown:
        within: Any = reduce(getitem, path, known)  # type: ignore[arg-type]
        del within[last]
    return known, unknown
