"""The settings of the test cluster: options of its command, or `ROLLOUTFLEET_E2E_…` in the environment."""

from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from toolchain.kubernetes.paths import CLUSTER_CACHE

ENV_PREFIX = "ROLLOUTFLEET_E2E_"


def _room_for(bits: int) -> AfterValidator:
    def check(network: IPv4Network) -> IPv4Network:
        if network.prefixlen > bits:
            raise ValueError(f"is too small: /{bits} or larger is needed")
        if not network.is_private:
            raise ValueError("is not a private range: packets for other people's addresses would end on this machine")
        return network

    return AfterValidator(check)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    kubeconfig: Path | None = None
    """A cluster that is there already: its kubeconfig. Then none is made."""
    context: str | None = None
    """Which of the kubeconfig's contexts (unset: its current one)."""
    registry: str | None = None
    """Where a cluster of yours pulls from: `load` pushes images there."""

    name: str = Field(default="rolloutfleet", pattern=r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")
    workers: int = Field(default=2, ge=0, le=8)
    pod_range: Annotated[IPv4Network, _room_for(20)] = IPv4Network("10.244.0.0/16")
    service_range: Annotated[IPv4Network, _room_for(24)] = IPv4Network("10.96.0.0/16")
    node_image: str | None = None
    """A kind node image (unset: the one kind publishes for our Kubernetes, or one made here from packages)."""

    docker_data: Path = CLUSTER_CACHE / "docker"
    """Where a Docker daemon that we start keeps its images: several GB."""
    docker_range: Annotated[IPv4Network, _room_for(24)] = IPv4Network("172.30.0.0/16")
    """Where it takes the addresses of nodes from."""
    debian_mirror: str = Field(default="http://deb.debian.org/debian", pattern=r"^https?://\S+$")

    @model_validator(mode="after")
    def _ranges_are_apart(self) -> Self:
        ranges = {"pod_range": self.pod_range, "service_range": self.service_range, "docker_range": self.docker_range}
        for (one, first), (other, second) in combinations(ranges.items(), 2):
            if first.overlaps(second):
                raise ValueError(f"{one} {first} and {other} {second} overlap")
        return self
