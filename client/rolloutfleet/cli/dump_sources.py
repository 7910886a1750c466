"""Where the `dumps` commands look: a folder on this machine, or the proxies of a fleet."""

import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from rolloutfleet.cli.api import NativeApi
from rolloutfleet.cli.failures import CommandFailed, failed, warn_unless_all_failed, wrong
from rolloutfleet.dumps import CLAIM_MARK, IMPORTED_MARK, Damaged, glance, open_dump, parse_dump_name
from rolloutfleet.wire import ListedDump

PAGE = 500


class Source(Protocol):
    """Where dumps are."""

    def listed(self, state: str | None = None) -> list[ListedDump]:
        """All of them, by name. Raises CommandFailed."""

    def open(self, name: str) -> BinaryIO:
        """Raises CommandFailed."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder with dump files."""

    path: Path

    def listed(self, state: str | None = None) -> list[ListedDump]:
        try:
            found = list(_in_folder(self.path))
        except OSError as error:
            raise wrong(f"{self.path} can't be read: {error.strerror}") from None
        return [listed for listed in found if state in (None, listed.state)]

    def open(self, name: str) -> BinaryIO:
        for file in (self.path / name, self.path / f"{name}{IMPORTED_MARK}"):
            try:
                return open_dump(file)
            except FileNotFoundError:
                continue
            except Damaged as error:
                raise failed(f"{file} is no dump: {error}") from None
            except OSError as error:
                raise failed(f"{file} can't be read: {error.strerror}") from None
        raise failed(f"there is no {name} in {self.path}")


@dataclass(frozen=True, slots=True)
class FleetSource:
    """The folders of a fleet's proxies; several of them may be one."""

    api: NativeApi
    proxies: dict[int, NativeApi] = field(default_factory=dict)
    """By ordinal, those that have been asked."""

    def listed(self, state: str | None = None) -> list[ListedDump]:
        """Of a file that several proxies list, the one that its own proxy does, if that is among them."""
        best: dict[tuple[str, str], ListedDump] = {}
        for dump in self._all(state):
            known = best.setdefault((dump.name, dump.state), dump)
            name = parse_dump_name(dump.name)
            if name is not None and known.ordinal != dump.ordinal == name.ordinal:
                best[dump.name, dump.state] = dump
        return [best[key] for key in sorted(best)]

    def open(self, name: str) -> BinaryIO:
        refused: CommandFailed | None = None
        for proxy in self.api.each():
            # A file may be larger than memory, whether or not it is a dump.
            into = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 (the caller closes it)
            try:
                proxy.fetch(f"/dumps/{name}", into)
            except CommandFailed as error:
                into.close()
                refused = refused or error
            else:
                into.seek(0)
                return into
        assert refused is not None
        raise refused

    def take(self, ordinal: int, names: list[str], *, incomplete: bool) -> list[dict[str, Any]]:
        """Import at one of the proxies that have been listed. Raises CommandFailed."""
        answer = self.proxies[ordinal].post("/dumps/import", {"names": names, "incomplete": incomplete})
        imported: list[dict[str, Any]] = answer["imported"]
        return imported

    def _all(self, state: str | None) -> Iterator[ListedDump]:
        problems: list[CommandFailed] = []
        for proxy in self.api.each():
            try:
                yield from self._of_proxy(proxy, state)
            except CommandFailed as error:
                problems.append(error)
        warn_unless_all_failed(problems, answered=bool(self.proxies))

    def _of_proxy(self, proxy: NativeApi, state: str | None) -> Iterator[ListedDump]:
        for page in proxy.pages("/dumps", state=state, limit=PAGE):
            self.proxies[page["ordinals"][0]] = proxy
            yield from (ListedDump.model_validate(dump) for dump in page["dumps"])


def by_group(dumps: Iterable[ListedDump]) -> list[list[ListedDump]]:
    """Those of one group at one proxy together, so that they are imported, and then exported, together."""
    groups: dict[tuple[int, str], list[ListedDump]] = {}
    for dump in dumps:
        groups.setdefault((dump.ordinal, dump.group_id or dump.session_id), []).append(dump)
    return list(groups.values())


def _in_folder(folder: Path) -> Iterator[ListedDump]:
    """Raises OSError."""
    for file in sorted(folder.iterdir()):
        plain, claim, _ = file.name.partition(CLAIM_MARK)
        name = parse_dump_name(plain.removesuffix(IMPORTED_MARK))
        if name is None:
            continue
        try:
            seen, head = file.lstat(), glance(file)
        except FileNotFoundError:
            continue
        yield ListedDump(
            name=str(name),
            session_id=name.session_id,
            trajectory=name.number,
            state="importing" if claim else "imported" if file.name.endswith(IMPORTED_MARK) else "ready",
            bytes=seen.st_size if stat.S_ISREG(seen.st_mode) else 0,
            modified=seen.st_mtime,
            **asdict(head),
        )
