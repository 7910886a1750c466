"""The values of the Helm chart: each with its default and its rule, written once.

    python -m rolloutfleet_operator.chart charts/rolloutfleet

writes from them `values.yaml` and `values.schema.json`, and puts the table of all values into the chart's `README.md`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from rolloutfleet.spec_fields import LabelName

Text = Annotated[str, Field(max_length=1024)]
Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
Namespace = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=63)]
Texts = dict[str, str]
KubernetesObjects = list[dict[str, JsonValue]]
KubernetesObject = dict[str, JsonValue]

_RESOURCES: KubernetesObject = {"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}}


class ValuesModel(BaseModel):
    """What all parts share: an unknown value is an error, so that a typo is one."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
    )


class Image(ValuesModel):
    """One image."""

    repository: Annotated[str, Field(min_length=1, max_length=1024)]
    """Its name, without registry and tag."""
    tag: Annotated[str, Field(pattern=r"^(\w[\w.-]{0,127})?$")] = ""
    """The chart's appVersion unless set."""
    digest: Digest = ""
    """sha256:…; takes precedence over the tag."""


class Images(ValuesModel):
    """The operator's image, and the default images of fleets."""

    registry: Text = ""
    """Prefix of the names below, such as `registry.example.com/team`."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When the operator's own image is pulled."""
    pull_secrets: list[Texts] = Field(default_factory=list)
    """Secrets for the operator's own image: `[{name: …}]`. Fleets have `spec.imagePullSecrets`."""
    operator: Image = Image(repository="rolloutfleet-operator")
    proxy: Image = Image(repository="rolloutfleet-proxy")
    gateway: Image = Image(repository="rolloutfleet-gateway")
    simulated_engine: Image = Image(repository="rolloutfleet-engine")
    engine: Text = ""
    """SGLang's image, in full, for engines that fleets run themselves; the operator's own default unless set."""


class Crds(ValuesModel):
    """The CustomResourceDefinition."""

    enabled: bool = True
    """Install it, and upgrade it with the chart. Exactly one release per cluster should."""
    keep: bool = True
    """Keep it at uninstall: deleting it deletes every fleet of the cluster."""


class ClusterRoles(ValuesModel):
    """Rights of users with the roles view, edit or admin."""

    enabled: bool = True
    """Install rolloutfleet-view and rolloutfleet-edit. Exactly one release per cluster should."""


class Rbac(ValuesModel):
    """The operator's permissions."""

    enabled: bool = True
    """Create its roles and bindings; if false, somebody else has to."""


class ServiceAccount(ValuesModel):
    """The operator's identity."""

    create: bool = True
    """Create it; if false, `name` names an existing one."""
    name: Text = ""
    """By default the operator's own name."""
    annotations: Texts = Field(default_factory=dict)
    """Annotations, for example for a cloud's workload identity."""


class Log(ValuesModel):
    """What the operator writes to standard error."""

    format: Literal["json", "plain"] = "json"
    """One line per event."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written."""


class PodMonitor(ValuesModel):
    """For the Prometheus operator: one that finds operator, proxies and gateways by label."""

    enabled: bool = False
    """Needs the definitions of monitoring.coreos.com in the cluster."""
    labels: Texts = Field(default_factory=dict)
    """Labels by which your Prometheus selects monitors."""
    interval: Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m)$")] = "30s"
    """How often it scrapes."""


class PrometheusRule(ValuesModel):
    """For the Prometheus operator: alerts about fleets and their operator (docs/runbook.md explains each)."""

    enabled: bool = False
    """Needs the definitions of monitoring.coreos.com in the cluster, and the PodMonitor."""
    labels: Texts = Field(default_factory=dict)
    """Labels by which your Prometheus selects rules."""


class Dashboard(ValuesModel):
    """For Grafana: a ConfigMap with a dashboard, which Grafana's sidecar finds by label."""

    enabled: bool = False
    """Create it."""
    sidecar_label: LabelName = "grafana_dashboard"
    """The label that the sidecar looks for; its value is "1"."""
    namespace: Namespace = ""
    """Where the sidecar looks; by default the release's namespace."""
    labels: Texts = Field(default_factory=dict)
    """Further labels."""
    annotations: Texts = Field(default_factory=dict)
    """Annotations, for example the folder in Grafana."""


class Metrics(ValuesModel):
    """Metrics for Prometheus."""

    service: bool = True
    """Create a Service for the operator's /metrics."""
    pod_monitor: PodMonitor = PodMonitor()
    prometheus_rule: PrometheusRule = PrometheusRule()
    dashboard: Dashboard = Dashboard()


class Values(ValuesModel):
    """All of them."""

    images: Images = Images()
    watch_namespace: Namespace = ""
    """The only namespace that the operator serves and has rights in; by default every namespace."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 2
    """Number of operators. One acts; another takes its place when it ends, or is silent for 15 s."""
    max_concurrent_disruptions: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many proxies of all fleets together the operator may take down at once."""
    cluster_domain: Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)] = "cluster.local"
    """The domain of the cluster's Services."""
    log: Log = Log()
    crds: Crds = Crds()
    cluster_roles: ClusterRoles = ClusterRoles()
    rbac: Rbac = Rbac()
    service_account: ServiceAccount = ServiceAccount()
    metrics: Metrics = Metrics()
    resources: KubernetesObject = _RESOURCES
    """Resources of the operator's container."""
    priority_class_name: Text = ""
    """For example `system-cluster-critical`, so that the operator outlives the pods that it manages."""
    node_selector: Texts = Field(default_factory=dict)
    """Labels of the nodes that the operator runs on."""
    tolerations: KubernetesObjects = Field(default_factory=list)
    """Taints that it tolerates."""
    affinity: KubernetesObject = Field(default_factory=dict)
    """The affinity of its pod."""
    pod_labels: Texts = Field(default_factory=dict)
    """Further labels of its pod."""
    pod_annotations: Texts = Field(default_factory=dict)
    """Further annotations of its pod."""


VALUES, SCHEMA, README = "values.yaml", "values.schema.json", "README.md"
_MADE: Final = "# Generated by `make chart` from rolloutfleet_operator.chart. Do not edit.\n"
_BEGIN, _END = "<!-- values: made by `make chart` -->\n", "<!-- end of values -->\n"


def pages(readme: str) -> dict[str, str]:
    """Each generated file of the chart; `readme` is what its README.md says now."""
    before, rest = readme.split(_BEGIN)
    return {
        VALUES: f"{_MADE}{_yaml(Values(), indent='')}",
        SCHEMA: json.dumps(_schema(), indent=1) + "\n",
        README: f"{before}{_BEGIN}\n{_table()}\n{_END}{rest.split(_END)[1]}",
    }


def _schema() -> dict[str, Any]:
    schema = Values.model_json_schema(by_alias=True)
    # Helm hands this to charts that are part of another one.
    schema["properties"]["global"] = {"type": "object", "description": "Not used."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _yaml(values: ValuesModel, *, indent: str) -> str:
    """The values as a file, each under what it is for."""
    lines = []
    for name, field in type(values).model_fields.items():
        value, key = getattr(values, name), to_camel(name)
        of_part = isinstance(value, ValuesModel) and not isinstance(value, Image)
        about = field.description or (of_part and type(value).__doc__) or ""
        lines += [f"{indent}# {line.strip()}\n" for line in about.strip().splitlines()]
        if isinstance(value, ValuesModel):
            lines += [f"{indent}{key}:\n", _yaml(value, indent=indent + "  ")]
        elif isinstance(value, dict) and value:
            block = yaml.safe_dump({key: value}, sort_keys=False)
            lines += [f"{indent}{line}\n" for line in block.splitlines()]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)


def _table() -> str:
    rows = [f"| `{path}` | `{json.dumps(value)}` | {about} |\n" for path, value, about in _rows(Values(), path="")]
    return f"| value | default | meaning |\n|---|---|---|\n{''.join(rows)}"


def _rows(values: ValuesModel, *, path: str) -> Iterator[tuple[str, Any, str]]:
    for name, field in type(values).model_fields.items():
        value, where = getattr(values, name), f"{path}{to_camel(name)}"
        if isinstance(value, ValuesModel):
            yield from _rows(value, path=f"{where}.")
        else:
            yield where, value, " ".join((field.description or "").split())


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not (folder := Path(arguments[0])).is_dir():
        print("usage: python -m rolloutfleet_operator.chart FOLDER_OF_THE_CHART", file=sys.stderr)
        return 2
    for name, text in pages((folder / README).read_text()).items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
