"""What is remembered of each cluster: that it is there, how it was made, and what has to be undone with it."""

import shutil
from ipaddress import IPv4Network
from pathlib import Path

from pydantic import BaseModel, ValidationError

from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.paths import CLUSTERS


class Record(BaseModel):
    """A cluster that `up` made or was pointed at. Written before the first of it exists."""

    name: str
    kubeconfig: Path
    context: str | None = None
    made_here: bool
    """False for a cluster of yours, of which `down` only forgets."""
    docker_host: str | None = None
    private_daemon: bool = False
    registry: str | None = None
    node_image: str | None = None
    ranges: tuple[IPv4Network, ...] = ()
    """Pods' and services'."""
    added_routes: tuple[IPv4Network, ...] = ()
    """Those of `ranges` that were not unreachable before."""

    @property
    def folder(self) -> Path:
        return CLUSTERS / self.name

    @property
    def shared(self) -> Path:
        """The folder that every node of a cluster made here has at `kind.SHARED`."""
        return self.folder / "shared"

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "record.unfinished"
        unfinished.write_text(self.model_dump_json(indent=2))
        unfinished.rename(self.folder / "record.json")

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def kubeconfig_of(name: str) -> Path:
    return CLUSTERS / name / "kubeconfig"


def read(name: str) -> Record | None:
    path = CLUSTERS / name / "record.json"
    try:
        return Record.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ClusterError(f"{path} can't be understood (remove it if no such cluster runs): {error}") from None


def every() -> list[Record]:
    names = sorted(path.parent.name for path in CLUSTERS.glob("*/record.json"))
    return [record for record in map(read, names) if record is not None]


def routes_only_needed_by(record: Record, others: list[Record]) -> list[IPv4Network]:
    """The routes to remove with a cluster: those we added and no other cluster of ours stands behind."""
    kept = {network for other in others if other.name != record.name for network in other.ranges}
    return [network for network in record.added_routes if network not in kept]
