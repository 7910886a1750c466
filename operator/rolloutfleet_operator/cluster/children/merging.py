"""A user's `podTemplate` merged over the generated pod, by the merge keys that Kubernetes has for pods.

Mappings are merged; lists of named things (containers, volumes, environment ...) are merged by name, and new ones are
added at the end; other lists are replaced; null takes a field away. The merge keys are those of Kubernetes' strategic
merge patch (`patchMergeKey` in k8s.io/api/core/v1). What our own working depends on may not be changed that way.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet_operator.policy.reasons import ProblemReason

Template = dict[str, Any]

MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "claims": "name",
    "schedulingGates": "name",
}
_WHOLE: Final = frozenset(("volumes",))
"""Elements that are replaced and not merged: a volume has one source only."""


class TemplateInvalid(Exception):
    """A podTemplate that can't be merged; the message names the field by its path."""

    reason: Final = ProblemReason.TEMPLATE_INVALID


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What a podTemplate may not change of one generated pod."""

    container: str
    """Our own container: its ports and mounts stay."""
    volumes: frozenset[str] = frozenset()
    """Names of volumes that are ours alone."""
    environment: Callable[[str], str | None] = lambda _: None
    """For a variable's name, why it can't be set; None where it can."""


def merge(base: Template, overlay: Mapping[str, Any], *, path: str, fixed: Fixed) -> Template:
    """The template with the user's part over it. Raises TemplateInvalid, with the field's path below `path`."""
    _check_metadata(base, overlay, path)
    spec = _mapping(overlay.get("spec", {}), f"{path}.spec")
    _check_spec(spec, f"{path}.spec", fixed)
    for name in overlay:
        if name not in ("metadata", "spec"):
            raise TemplateInvalid(f"{path}.{name}: no such field; a pod template has metadata and spec")
    merged: Template = _merge_mapping(base, overlay, path)
    _check_container(base, merged, f"{path}.spec", fixed)
    return merged


def _merge_mapping(base: Mapping[str, Any], overlay: Mapping[str, Any], path: str) -> dict[str, Any]:
    merged = dict(base)
    for name, value in overlay.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = _merge_mapping(_mapping(base.get(name) or {}, f"{path}.{name}"), value, f"{path}.{name}")
        elif isinstance(value, list) and name in MERGE_KEYS:
            merged[name] = _merge_list(name, base.get(name) or [], value, f"{path}.{name}")
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _merge_list(name: str, base: Sequence[Any], overlay: Sequence[Any], path: str) -> list[Any]:
    key = MERGE_KEYS[name]
    merged = list(base)
    at = {_key_of(element, key, path): index for index, element in enumerate(base)}
    for index, element in enumerate(overlay):
        if not isinstance(element, dict) or not isinstance(element.get(key), str | int):
            raise TemplateInvalid(f"{path}[{index}].{key}: is missing; elements of {name} are merged by it")
        there = at.get(element[key])
        if there is None:
            at[element[key]] = len(merged)
            merged.append(_merge_mapping({}, element, f"{path}[{index}]"))
        elif name in _WHOLE:
            merged[there] = _merge_mapping({}, element, f"{path}[{index}]")
        else:
            merged[there] = _merge_mapping(merged[there], element, f"{path}[{index}]")
    return merged


def _key_of(element: Mapping[str, Any], key: str, path: str) -> str | int:
    """Of an element that a field of the spec gave."""
    found = element.get(key)
    if not isinstance(found, str | int):
        raise TemplateInvalid(f"{path}: an element that the spec gives has no {key}")
    return found


def _mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TemplateInvalid(f"{path}: must be a mapping, not {type(value).__name__}")
    return value


def _check_metadata(base: Template, overlay: Mapping[str, Any], path: str) -> None:
    """The labels that are there already choose the pods."""
    given = _mapping(overlay.get("metadata", {}), f"{path}.metadata")
    for name, value in given.items():
        if name not in ("labels", "annotations"):
            raise TemplateInvalid(f"{path}.metadata.{name}: only labels and annotations can be given here")
        for key in _mapping(value, f"{path}.metadata.{name}"):
            if key in base["metadata"]["labels"] or "rolloutfleet.dev/" in key:
                raise TemplateInvalid(f"{path}.metadata.{name}[{key}]: is the operator's own and can't be changed")


_OF_THE_POD: Final = {
    "terminationGracePeriodSeconds": "follows from disruption.drainTimeout; set that instead",
    "restartPolicy": "is Always for every pod of a fleet",
    "hostname": "follows from the ordinal",
    "subdomain": "follows from the fleet's name",
    "enableServiceLinks": "stays off: links would be taken for settings",
}


def _check_spec(spec: Mapping[str, Any], path: str, fixed: Fixed) -> None:
    for name, why in _OF_THE_POD.items():
        if name in spec:
            raise TemplateInvalid(f"{path}.{name}: {why}")
    for kind in ("containers", "initContainers", "volumes"):
        if kind in spec and not isinstance(spec[kind], list):
            raise TemplateInvalid(f"{path}.{kind}: must be a list of elements with a name")
    for index, volume in _elements(spec, "volumes"):
        if not isinstance(volume.get("name"), str | None):
            raise TemplateInvalid(f"{path}.volumes[{index}].name: must be text, not {type(volume['name']).__name__}")
        if volume.get("name") in fixed.volumes:
            raise TemplateInvalid(
                f"{path}.volumes[{index}]: the volume {volume['name']} is the operator's own; choose another name"
            )
    for index, container in _elements(spec, "containers"):
        if container.get("name") == fixed.container:
            _check_environment(container, f"{path}.containers[{index}]", fixed)


def _check_environment(container: Mapping[str, Any], path: str, fixed: Fixed) -> None:
    for index, variable in _elements(container, "env"):
        why = fixed.environment(str(variable.get("name")))
        if why is not None:
            raise TemplateInvalid(f"{path}.env[{index}]: {variable['name']} {why}")


def _check_container(base: Template, merged: Template, path: str, fixed: Fixed) -> None:
    """Whatever way it was written: the ports and mounts that we made are still there as they were."""
    before, after = _container(base, fixed.container), _container(merged, fixed.container)
    for kind, key in (("ports", "containerPort"), ("volumeMounts", "mountPath")):
        now = [element for _, element in _elements(after, kind)]
        for element in before.get(kind, ()):
            if element not in now:
                raise TemplateInvalid(
                    f"{path}.containers[{fixed.container}].{kind}[{element[key]}]: is the operator's own and can't be "
                    "changed"
                )
    ours = [element["mountPath"] for element in before.get("volumeMounts", ()) if element["name"] in fixed.volumes]
    for _, mount in _elements(after, "volumeMounts"):
        for path_of_ours in ours:
            if str(mount.get("mountPath")).startswith(f"{path_of_ours.rstrip('/')}/"):
                raise TemplateInvalid(
                    f"{path}.containers[{fixed.container}].volumeMounts[{mount['mountPath']}]: lies within "
                    f"{path_of_ours}, which is the operator's own"
                )


def _container(template: Template, name: str) -> Mapping[str, Any]:
    return next((each for each in template["spec"].get("containers") or () if each.get("name") == name), {})


def _elements(parent: Mapping[str, Any], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    elements = parent.get(name)
    if isinstance(elements, list):
        yield from ((index, each) for index, each in enumerate(elements) if isinstance(each, dict))
