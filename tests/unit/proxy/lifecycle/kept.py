"""A store that copies sessions as they are trained."""

from pathlib import Path

from tests.unit.proxy.lifecycle.imports import Store

from rolloutfleet.settings import ProxySettings
from rolloutfleet.spec_for_proxies import InspectSpec, KeepSpec
from rolloutfleet_proxy.services.keeping import Keeping
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.store.annotations import Annotations, Series, annotate
from rolloutfleet_proxy.store.remains import clear_some
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.telemetry.metrics import Metrics, by_label

MIB = 2**20


class House(Store):
    """A store, and what copies its sessions."""

    def __init__(self, folder: Path, *, fraction: float = 1.0, most: int = MIB) -> None:
        self.fraction, self.most, self.metrics = fraction, most, Metrics()
        super().__init__(folder / "store", folder / "dumps")
        self.files = folder / "kept"

    def _open(self) -> None:
        super()._open()
        self.writer.keep_fraction = self.fraction
        settings = ProxySettings(
            fleet="test",
            model="none",
            state_dir=self.folder.parent,
            gateway_url="http://127.0.0.1:9",
            inspect=InspectSpec(keep=KeepSpec(fraction=self.fraction, max_bytes=self.most)),
        )
        self.keeping = Keeping(
            store=self.store, settings=SettingsInForce(settings), metrics=self.metrics, wall=lambda: 2e9
        )

    def _shut(self) -> None:
        self.wait(self.keeping.close())
        super()._shut()

    def talked(self, *, group: int = 1) -> list[str]:
        """Sessions of a group, each with a trajectory that branches, an orphan in it, and what is said of them."""
        return [self._one(*started) for started in self.start(group, task_id="task")]

    def _one(self, session: int, name: str) -> str:
        first = self.commit(session, name=f"{name}-a", output=[7, 8], version=3)
        self.commit(session, name=f"{name}-b", parent=first)
        self.commit(session, name=f"{name}-c", parent=first, asks="again", delivered=False)
        self.commit(session, name=f"{name}-d", parent=first, asks="again")
        self.run(lambda transaction: transaction.execute("UPDATE turns SET reward = 0.5 WHERE number = 2").rowcount)
        said = Annotations([Series(f"{name}-a", "advantage", b"\0" * 8)], {f"{name}-a": "good"})
        self.run(lambda transaction: annotate(transaction, session, said))
        self.run(lambda transaction: close_session(transaction, session))
        return name

    def trained(self, *, group: int = 1) -> list[str]:
        """The same, acknowledged."""
        names = self.talked(group=group)
        self.ack(self.ask(session_ids=names))
        return names

    def copied(self) -> list[str]:
        """Names of the files that there are, once all that waits was copied."""
        self.wait(self.keeping.work())
        return sorted(file.name for file in self.files.iterdir()) if self.files.exists() else []

    def outcomes(self) -> dict[str, float]:
        return {outcome: count for outcome, count in by_label(self.metrics.sessions_kept).items() if count}

    def left(self) -> list[tuple[str, int]]:
        """Rows of sessions that are gone, by table."""
        while self.run(clear_some):
            pass
        tables = ("sessions", "trajectories", "turns", "annotations", "keeping", "freed_sessions")
        counts = [(table, self.rows(f"SELECT count(*) FROM {table}")[0][0]) for table in tables]
        return [(table, count) for table, count in counts if count]
