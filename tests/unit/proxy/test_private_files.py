"""Files of a proxy are its own user's, but for dumps on a volume that the resource names."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.private_files import make_private, tighten


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_files_made_from_then_on_are_for_their_user_alone(tmp_path: Path) -> None:
    make_private()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    assert (mode(tmp_path / "folder"), mode(tmp_path / "file")) == (0o700, 0o600)


def test_files_of_an_earlier_release_are_tightened_and_links_lead_nowhere(tmp_path: Path) -> None:
    folder, file, other, link = (tmp_path / name for name in ("folder", "file", "other", "link"))
    folder.mkdir(0o755)
    file.write_text("x")
    other.write_text("x")
    link.symlink_to(other)
    tighten((folder, file, link, tmp_path / "missing"))
    assert (mode(folder), mode(file), mode(other)) == (0o700, 0o600, 0o644)


@pytest.mark.parametrize(("shared", "modes"), [(False, (0o700, 0o600)), (True, (0o770, 0o660))])
def test_dumps_are_for_the_group_where_the_resource_names_their_volume(
    store: SyncStore, tmp_path: Path, shared: bool, modes: tuple[int, int]
) -> None:
    make_private()
    folder = DumpFolder(tmp_path / "dumps" / "below", store.owner, shared=shared)
    folder.write("s0-1-active.json", [b"{}"], turns=())
    made = folder.path / "s0-1-active.json"
    assert (mode(folder.path.parent), mode(folder.path), mode(made)) == (modes[0], *modes)
