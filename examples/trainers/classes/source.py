"""Definitions of a package's module without the module, whose imports would bring ray, engines or another PyTorch."""

import ast
from collections.abc import Collection
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def definitions(package: str, file: str, names: Collection[str], **given: Any) -> Any:
    """The classes and functions of these names, by name, executed from the file as the package installed it.

    `given` are the names that they use; the file's imports from the standard library's `typing` and from
    `__future__` are executed too. Raises LookupError where the file has no such definition.
    """
    path = Path(str(distribution(package).locate_file(file)))
    module = ast.parse(path.read_text())
    chosen = [node for node in module.body if getattr(node, "name", None) in names]
    if lacking := set(names) - {getattr(node, "name", None) for node in chosen}:
        raise LookupError(f"{file} of {package} does not define {min(lacking)}")
    imports = [
        node for node in module.body if isinstance(node, ast.ImportFrom) and node.module in ("typing", "__future__")
    ]
    made: dict[str, Any] = {"__name__": package, **given}
    exec(compile(ast.Module([*imports, *chosen], []), str(path), "exec"), made)
    return SimpleNamespace(**{name: made[name] for name in names})
