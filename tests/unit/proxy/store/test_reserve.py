"""The reserve takes what there is room for."""

from pathlib import Path

import pytest

from rolloutfleet_proxy.store.reserve import Reserve

SIZE = 1 << 20


def test_its_last_piece_is_taken_however_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be owed for ever."""
    monkeypatch.setattr(Reserve, "_room", lambda reserve: SIZE - 4096)
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert reserve.owed == 4096
    monkeypatch.setattr(Reserve, "_room", lambda reserve: SIZE)
    reserve.take()
    assert reserve.owed == 0
    reserve.close()
