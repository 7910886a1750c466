"""The operator's settings, by flag or environment: `--proxy-image` is `ROLLOUTFLEET_OPERATOR_PROXY_IMAGE`."""

import argparse
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rolloutfleet.explain import what_is_wrong
from rolloutfleet.installed import own_version
from rolloutfleet_operator.cluster.children.names import OPERATOR

ENVIRONMENT: Final = "ROLLOUTFLEET_OPERATOR_"


_VERSION: Final = own_version()


class BadSettings(Exception):
    """A flag or variable that can't be used; the message names it."""


class OperatorSettings(BaseModel):
    """All of it, with its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    namespace: str | None = None
    """Manage fleets of this namespace only; unset: of all namespaces."""
    proxy_image: str = f"rolloutfleet-proxy:{_VERSION}"
    """Image of the proxies, unless a fleet names one."""
    gateway_image: str = f"rolloutfleet-gateway:{_VERSION}"
    """Image with smg."""
    engine_image: str = "lmsysorg/sglang:v0.5.23"
    """Image with SGLang, for fleets that run their engines themselves."""
    simulated_engine_image: str = f"rolloutfleet-engine:{_VERSION}"
    """Image of the simulated engine, for fleets whose model is `simulated`."""
    max_concurrent_disruptions: Annotated[int, Field(ge=1)] = 1
    """Restarts that may be in progress at once, over all fleets."""
    lease_namespace: str = "default"
    """Where the Lease of the operator is; its own namespace."""
    lease_name: str = OPERATOR
    """The Lease's name. Of the operators with the same Lease, one acts and the others wait."""
    listen: str = "0.0.0.0:8080"
    """Where /healthz and /metrics are served."""
    log_format: Literal["json", "plain"] = "json"
    """One line per event, as a JSON object or as text."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written."""
    cluster_domain: str = "cluster.local"
    """The domain that the cluster's Services are found in."""

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError("write it like 0.0.0.0:8080")
        return listen

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def host(self, service: str, namespace: str) -> str:
        """The name that a Service of this cluster has."""
        return f"{service}.{namespace}.svc.{self.cluster_domain}"


def add_flags(parser: argparse.ArgumentParser) -> None:
    for name, about in OperatorSettings.model_fields.items():
        default = "" if about.default is None else f" (default {about.default})"
        parser.add_argument(f"--{_dashed(name)}", metavar="VALUE", help=f"{about.description}{default}")


def read(flags: argparse.Namespace, environment: Mapping[str, str]) -> OperatorSettings:
    """Flags over the environment. Raises BadSettings."""
    given: dict[str, Any] = {}
    for name in OperatorSettings.model_fields:
        from_flag = getattr(flags, name, None)
        # An empty variable is how a chart says that nothing was set.
        text = from_flag if from_flag is not None else environment.get(f"{ENVIRONMENT}{name.upper()}") or None
        if text is not None:
            given[name] = text
    try:
        return OperatorSettings.model_validate(given)
    except ValidationError as error:
        lines = [f"--{_dashed(str(each['loc'][0]))}: {what_is_wrong(each)}" for each in error.errors()]
        raise BadSettings("\n".join(lines)) from None


def _dashed(name: str) -> str:
    return name.replace("_", "-")
