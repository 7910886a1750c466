"""Another version of the images, as an earlier release would have them: the code of today under another name."""

from dataclasses import replace
from typing import Final

from e2e.cluster import lifecycle
from e2e.cluster.docker.client import Docker
from e2e.cluster.records import Record
from e2e.installing import Images

_METADATA: Final = "/opt/rolloutfleet/lib/python3.11/site-packages/rolloutfleet-*.dist-info/METADATA"


def as_version(record: Record, docker: Docker, images: Images, version: str) -> Images:
    """Proxy and operator that say they are of that version, given to the cluster. The settings' schema is today's."""
    made = {name: _renamed(docker, getattr(images, name), version) for name in ("proxy", "operator")}
    loaded = lifecycle.load(record, list(made.values()), docker)
    return replace(images, **dict(zip(made, loaded, strict=True)))


def _renamed(docker: Docker, image: str, version: str) -> str:
    name = f"{image.rpartition(':')[0]}:{version}"
    lines = [
        f"FROM {image}",
        "USER 0",
        f"RUN sed -i 's/^Version: .*/Version: {version}/' {_METADATA}",
        "USER 65532:65532",
    ]
    docker("build", "--network", "none", "--tag", name, "-", stdin="\n".join(lines))
    return name
