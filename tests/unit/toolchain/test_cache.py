"""What takes long to make is made once, whole or not at all."""

from pathlib import Path

import pytest
from toolchain.cache import appearing, cache_root, digest_of


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ROLLOUTFLEET_CACHE", raising=False)
    assert cache_root() == tmp_path / "rolloutfleet"
    monkeypatch.setenv("ROLLOUTFLEET_CACHE", "/elsewhere")
    assert cache_root() == Path("/elsewhere")


def test_a_digest_changes_with_every_file_and_text(tmp_path: Path) -> None:
    file = tmp_path / "inner" / "file"
    file.parent.mkdir()
    file.write_text("one")
    before = digest_of(tmp_path, "words")
    assert digest_of(tmp_path, "other words") != before
    file.write_text("two")
    assert digest_of(tmp_path, "words") != before


def test_what_is_not_finished_does_not_appear(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(RuntimeError), appearing(made) as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with appearing(made) as folder:
        (folder / "whole").touch()
    assert (made / "whole").exists()


def test_what_a_killed_maker_left_blocks_nobody_where_it_can_not_be_removed(tmp_path: Path) -> None:
    """A link, which `rmtree` refuses, stands for a mount that can't be undone."""
    made = tmp_path / "made"
    (tmp_path / "made.unfinished").symlink_to(tmp_path)
    with appearing(made) as folder:
        (folder / "whole").touch()
    assert (made / "whole").exists()


def test_what_a_killed_maker_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for name in ("made.unfinished", "made.unfinished-0123abcd"):
        (tmp_path / name / "root" / "proc").mkdir(parents=True)
    with appearing(made):
        pass
    assert list(tmp_path.iterdir()) == [made]
