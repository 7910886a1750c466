"""Reading a fleet's resource from a file, with errors that tell a person what to correct."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rolloutfleet.explain import explain
from rolloutfleet.spec import KIND, RolloutFleet


class FleetFileError(Exception):
    """A file that describes no fleet. `problems` has one line for each error in it."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))


class _PlainLoader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a key given twice is an error, and a date stays text."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: set[str] = set()
    for key_node, _ in node.value:
        key = str(key_node.value)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"{key} is given twice in one mapping", key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_PlainLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_fleet(path: Path) -> RolloutFleet:
    """The one RolloutFleet in a YAML or JSON file; other documents in the file are let be.

    Raises FleetFileError where the file can't be read, has no fleet or several, or the fleet is wrong.
    """
    documents = _documents(path)
    fleets = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    if not fleets and len(documents) == 1:
        # A lone document without the right kind is still meant as a fleet; the model says what is wrong.
        fleets = documents
    if len(fleets) != 1:
        count = "none" if not fleets else str(len(fleets))
        raise FleetFileError(path, [f"needs one document of kind {KIND}; it has {count}"])
    try:
        return RolloutFleet.model_validate(fleets[0], by_alias=True, by_name=False)
    except ValidationError as error:
        raise FleetFileError(path, explain(error, RolloutFleet)) from None


def _documents(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FleetFileError(path, [f"can't be read: {reason}"]) from None
    try:
        return [each for each in yaml.load_all(text, Loader=_PlainLoader) if each is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise FleetFileError(path, [_yaml_problem(error)]) from None


def _yaml_problem(error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return "is not YAML"
    return f"line {mark.line + 1}: {problem}"
