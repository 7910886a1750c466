"""The CustomResourceDefinition: made from the model, small, and telling what each field is for."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.paths import ROOT

from rolloutfleet.spec import FleetSpec, RolloutFleet
from rolloutfleet_operator import crd

FILE = ROOT / "crds" / f"{crd.NAME}.yaml"
SCHEMA = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
WITH_URLS = {"model": "m", "gateway": {"engines": {"urls": ["http://10.0.0.1:30000"]}}}


def fields(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field below a node, with its path."""
    for name, field in node.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    if "items" in node:
        yield from fields(node["items"], f"{path}[]")


SPEC = dict(fields(SCHEMA["properties"]["spec"], "spec"))
STATUS = dict(fields(SCHEMA["properties"]["status"], "status"))


def test_the_file_is_what_the_model_says() -> None:
    assert FILE.read_text() == crd.page(), "make crd"


def test_plain_apply_can_take_it() -> None:
    """`kubectl apply` keeps the last file in an annotation, and 256 KiB is all that annotations may take."""
    assert len(crd.page().encode()) < 60_000


@pytest.mark.parametrize(("path", "field"), [*SPEC.items(), *STATUS.items()], ids=[*SPEC, *STATUS])
def test_explain_says_what_a_field_is_for(path: str, field: dict[str, Any]) -> None:
    assert field.get("description"), path


def test_the_scale_subresource_and_the_columns_name_fields_that_are_there() -> None:
    version = crd.definition()["spec"]["versions"][0]
    scale = version["subresources"]["scale"]
    told = [scale[f"{name}Path"] for name in ("specReplicas", "statusReplicas", "labelSelector")]
    told += [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    plain = [path.removeprefix(".").split("[", 1)[0] for path in told]
    assert [path for path in plain if path not in {*SPEC, *STATUS} and not path.startswith("metadata.")] == []


def test_the_status_is_open_for_what_a_newer_operator_says() -> None:
    assert [path for path, field in STATUS.items() if "enum" in field] == []


def test_it_has_names_of_its_own_and_is_in_no_category() -> None:
    names = crd.definition()["spec"]["names"]
    assert (names["shortNames"], "categories" in names) == (["rfleet"], False)


def filled(node: dict[str, Any], value: Any) -> Any:
    """What the API server makes of a value by the defaults of its schema."""
    if not isinstance(value, dict):
        return value
    given = {name: filled(field, value[name]) for name, field in node.get("properties", {}).items() if name in value}
    absent = {
        name: filled(field, field["default"])
        for name, field in node.get("properties", {}).items()
        if name not in value and "default" in field
    }
    return value | given | absent


def test_defaults_are_the_models_own() -> None:
    """An object as the API server completes it means what the same file means to `rolloutfleet up`."""
    completed = filled(SCHEMA["properties"]["spec"], WITH_URLS)
    assert completed["sessions"]["staleAfter"] == "1h"
    assert completed["memory"]["rssBudget"] == "4Gi"
    assert FleetSpec.model_validate(completed, by_name=False) == FleetSpec.model_validate(WITH_URLS)


def test_a_completed_resource_is_read_back() -> None:
    whole = {
        "apiVersion": "rolloutfleet.dev/v1alpha1",
        "kind": "RolloutFleet",
        "metadata": {"name": "math", "uid": "0", "generation": 1},
        "spec": filled(SCHEMA["properties"]["spec"], WITH_URLS),
        "status": {},
    }
    assert RolloutFleet.model_validate(whole).spec.model == "m"
