"""The CustomResourceDefinition, made from the resource's one model.

    python -m rolloutfleet_operator.crd > crds/rolloutfleets.rolloutfleet.dev.yaml

Pydantic's JSON Schema becomes a structural OpenAPI v3 schema, as Kubernetes asks for: references are written out, null
is told by leaving a field out, objects of Kubernetes' own types keep whatever they hold, and defaults are as a file
would say them.
"""

from typing import Any, Final

import yaml
from pydantic import BaseModel

from rolloutfleet import spec, spec_for_proxies, status
from rolloutfleet.spec import API_VERSION, KIND, RolloutFleet
from rolloutfleet.spec_fields import CEL_RULES
from rolloutfleet_operator.policy import causes

GROUP, VERSION = API_VERSION.split("/")
PLURAL: Final = "rolloutfleets"
NAME: Final = f"{PLURAL}.{GROUP}"

_PRESERVE = {"x-kubernetes-preserve-unknown-fields": True}
_ANYTHING = "JsonValue"
_KEPT = (
    *(
        "type",
        "description",
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
    ),
    *("anyOf", "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", CEL_RULES),
)
"""What OpenAPI v3 and Kubernetes have in common with JSON Schema; the rest of a node is turned into it or left out."""

_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_COLUMNS: Final = (
    # (name, type, JSONPath, priority): those of priority 1 are shown by `-o wide`.
    ("Desired", "integer", ".spec.proxies.replicas", 0),
    ("Ready", "integer", ".status.readyReplicas", 0),
    ("Updated", "integer", ".status.updatedReplicas", 0),
    ("Gateway", "string", '.status.conditions[?(@.type=="GatewayReady")].status', 0),
    ("Engines", "string", '.status.conditions[?(@.type=="EnginesReady")].status', 0),
    ("Serving", "string", f"{_READY}.status", 0),
    ("Reason", "string", f"{_READY}.reason", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Draining", "integer", ".status.drainingReplicas", 1),
    ("Parked", "string", ".status.parked.ordinals", 1),
    ("Restarts", "integer", ".status.restarts.memory", 1),
    ("Last-Restart", "date", ".status.restarts.last[0].time", 1),
    ("Settings", "string", '.status.conditions[?(@.type=="SettingsInForce")].status', 1),
    ("Endpoint", "string", ".status.endpoint", 1),
    ("Model", "string", ".spec.model", 1),
)


def definition() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                # Not `rf`, which is RedisFailover's. No category: `kubectl delete all --all` would take fleets along,
                # and one that is named like another's plural would answer to that one's commands.
                "shortNames": ["rfleet"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.proxies.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def page() -> str:
    """The definition as the YAML file that is committed."""
    text = yaml.dump(definition(), Dumper=_Plain, width=110)
    return f"# Made by `make crd` from rolloutfleet.spec. Not to be edited.\n{text}"


class _Plain(yaml.SafeDumper):
    """Writes out what occurs twice, where YAML would refer to the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _column(name: str, kind: str, path: str, priority: int) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path}
    return column if priority == 0 else {**column, "priority": priority}


def _root() -> dict[str, Any]:
    whole = RolloutFleet.model_json_schema(by_alias=True, mode="validation")
    models = whole["$defs"]
    counted = models["RestartsStatus"]["properties"]
    for cause in causes.CAUSES:
        counted.setdefault(cause.counter, {"type": "integer", "description": cause.help})
    return {
        "type": "object",
        "description": "A fleet of inference proxies and the SGLang gateway behind them.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": _structural(models["FleetSpec"], models),
            "status": _structural(models["FleetStatus"], models, defaults=False),
        },
        CEL_RULES: whole[CEL_RULES],
    }


def _structural(node: dict[str, Any], models: dict[str, Any], *, defaults: bool = True) -> dict[str, Any]:
    """One node and all below it. What the operator writes itself (the status) needs no `defaults`."""
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name == _ANYTHING:
            return _PRESERVE
        node = models[name] | {key: value for key, value in node.items() if key != "$ref"}
    alone = _without_null(node)
    if alone is not node:
        return _structural(alone, models, defaults=defaults)
    made = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        made["enum"] = [node["const"]]
    if "items" in node:
        made["items"] = _object(_structural(node["items"], models, defaults=defaults))
    if "properties" in node:
        made |= _properties(node, models, defaults=defaults)
    elif node.get("type") == "object":
        # Kubernetes has no rules for names: the operator holds them to it.
        named = node.get("patternProperties", {"": node.get("additionalProperties")})
        made |= _mapping(next(iter(named.values())), models)
    return made


def _properties(node: dict[str, Any], models: dict[str, Any], *, defaults: bool) -> dict[str, Any]:
    """The fields of one of our own models."""
    said = _defaults(node["title"]) if defaults else {}
    made = {}
    for name, field in node["properties"].items():
        made[name] = _structural(field, models, defaults=defaults)
        if name in said:
            # In full, for the API server holds a default to the rules before it fills in what is within.
            made[name]["default"] = said[name]
    required = {"required": node["required"]} if "required" in node else {}
    return {"properties": made, **required}


def _mapping(values: Any, models: dict[str, Any]) -> dict[str, Any]:
    """An object with names of the user's choice; whatever is not a map of text or amounts belongs to Kubernetes."""
    if not isinstance(values, dict) or not values or "$ref" in values:
        return dict(_PRESERVE)
    return {"additionalProperties": _structural(values, models)}


def _object(node: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **node} if node == _PRESERVE else node


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`anyOf` of one thing and null, as that one thing; any other node as it is."""
    choices = node.get("anyOf", [])
    others: list[dict[str, Any]] = [choice for choice in choices if choice != {"type": "null"}]
    if len(others) == len(choices) or len(others) != 1:
        return node
    return others[0] | {key: value for key, value in node.items() if key not in ("anyOf", "default")}


def _defaults(model: str) -> dict[str, Any]:
    """The defaults of a model's fields, as a file would say them; a field without one is left out."""
    kind = next(getattr(module, model) for module in _MODELS if hasattr(module, model))
    assert issubclass(kind, BaseModel)
    said = kind.model_construct().model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: value for name, value in said.items() if value != [] and name not in _WITHOUT_A_DEFAULT}


_MODELS: Final = (spec, spec_for_proxies, status)

_WITHOUT_A_DEFAULT: Final = ("simulated",)
"""Means nothing but to simulated engines, so an object is not filled in with it."""


if __name__ == "__main__":
    print(page(), end="")
