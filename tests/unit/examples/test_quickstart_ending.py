"""What the quickstart shows at its end, and what it keeps."""

from pathlib import Path

from examples.quickstart.ending import keep, row_of, shown_places


def test_a_row_is_shown_where_its_first_answer_begins_and_ends() -> None:
    mask = [0] * 10 + [1] * 20 + [0] * 10 + [1] * 5
    assert list(shown_places(mask)) == [None, *range(6, 15), None, *range(27, 33), None]


def test_a_short_row_is_shown_whole() -> None:
    assert list(shown_places([0, 1, 1])) == [0, 1, 2]


def test_a_row_is_one_of_its_trajectorys() -> None:
    rows = [{"tensors": {"input_ids": [1]}}, {"tensors": {"input_ids": [2]}}]
    assert row_of({"trajectories": [{"session_id": "s", "rows": rows}]}) == {"session_id": "s", "input_ids": [1]}


def test_only_the_last_runs_files_are_kept(tmp_path: Path) -> None:
    for number in range(2):
        file = tmp_path / "fleet" / "dumps" / "0" / f"s{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        assert keep(tmp_path / "fleet", tmp_path / "kept") == [tmp_path / "kept" / file.name]
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["s1.json"]
