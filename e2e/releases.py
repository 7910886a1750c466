"""An earlier release, as it would be: the code of today under another name, whose proxies lack a setting."""

from dataclasses import replace
from typing import Final

from toolchain.kubernetes import lifecycle
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.records import Record

from e2e.installing import Images

UNKNOWN: Final = "maxHold"
"""The setting of `sessions` that its proxies don't know: to them it is a constant of the code."""
_PACKAGES: Final = "/opt/rolloutfleet/lib/python3.11/site-packages"
_SPEC: Final = f"{_PACKAGES}/rolloutfleet/spec_for_proxies.py"
_FORGET: Final = " && ".join(
    (
        f"sed -i 's/^from typing import /&ClassVar, /' {_SPEC}",
        f"sed -i 's/^    max_hold: PositiveDuration =/    max_hold: ClassVar[float] =/' {_SPEC}",
        f"grep -q 'max_hold: ClassVar' {_SPEC}",
    )
)


def as_version(record: Record, docker: Docker, images: Images, version: str) -> Images:
    """Proxy, operator and simulated engine that say they are of that version, given to the cluster."""
    made = {
        "proxy": _renamed(docker, images.proxy, version, _FORGET),
        "operator": _renamed(docker, images.operator, version),
        "engine": _renamed(docker, images.engine, version),
    }
    loaded = lifecycle.load(record, list(made.values()), docker)
    return replace(images, **dict(zip(made, loaded, strict=True)))


def _renamed(docker: Docker, image: str, version: str, *changes: str) -> str:
    name = f"{image.rpartition(':')[0]}:{version}"
    says = f"sed -i 's/^Version: .*/Version: {version}/' {_PACKAGES}/rolloutfleet-*.dist-info/METADATA"
    lines = [f"FROM {image}", "USER 0", *(f"RUN {change}" for change in (says, *changes)), "USER 65532:65532"]
    docker("build", "--network", "none", "--tag", name, "-", stdin="\n".join(lines))
    return name
