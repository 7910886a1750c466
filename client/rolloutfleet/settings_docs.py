"""`python -m rolloutfleet.settings_docs > docs/settings.md`: the page of a proxy's settings, from their model."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from rolloutfleet.explain import is_model
from rolloutfleet.settings import ProxySettings
from rolloutfleet.units import parse_duration, parse_quantity

HEAD = """\
# Settings of a proxy

`python -m rolloutfleet.settings_docs > docs/settings.md` writes this page from the model in `rolloutfleet/settings.py`;
a test fails while it is out of date. `rolloutfleet up` writes its proxies' settings by itself
([local-fleet.md](local-fleet.md)). A proxy that you start yourself gets them from

1. a file, YAML or JSON: `rolloutfleet-proxy --settings proxy.yaml`;
2. the environment, which overrides the file: `ROLLOUTFLEET_PORT=8081`, with two underscores for a nested field,
   `ROLLOUTFLEET_SESSIONS__RETRY_GRACE=20s`;
3. flags, which override both: `--port 8082`. `rolloutfleet-proxy --help` lists them.

OpenTelemetry's own variables say whether its calls are traced ([observability.md](observability.md#opentelemetry)).

Durations are written `90s`, `1h30m`, `250ms` or as seconds; byte sizes `4Gi`, `500M` or as a number. An invalid value
is reported with the field's name, and the exit status is 2.

"""


def page() -> str:
    """The whole page, in Markdown."""
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {default} | {meaning} |" for name, kind, default, meaning in rows(ProxySettings)]
    return HEAD + "\n".join(lines) + "\n"


def rows(model: type[BaseModel], *, within: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(dotted name, kind of value, default, meaning) of each field, those within a field in its place."""
    for name, field in model.model_fields.items():
        if is_model(field.annotation):
            yield from rows(field.annotation, within=f"{within}{name}.")
            continue
        kind = _kind(field.rebuild_annotation())
        yield within + name, _cell(kind), _default(field), _cell(field.description or "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "unset"
    shown = TypeAdapter(field.rebuild_annotation()).dump_python(value, mode="json")
    return f"`{_cell(shown if isinstance(shown, str) else json.dumps(shown))}`" if shown != "" else "empty"


def _kind(annotation: Any) -> str:
    """What a person may write there."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        readers = {getattr(each, "func", None) for each in arguments[1:]}
        if parse_duration in readers:
            return "duration"
        return "bytes" if parse_quantity in readers else _kind(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list: {_kind(arguments[0])}"
    if origin is dict:
        return "mapping"
    if origin is not None and type(None) in arguments:
        return _kind(Union[*(each for each in arguments if each is not type(None))])
    return _KINDS.get(annotation, "text")


_KINDS = {int: "number", float: "number", bool: "true or false"}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
