"""What a run of tests/timing came to, and what of it is committed."""

from pathlib import Path

from tests.timing.__main__ import Result, kept, read, write


def result(file: str, commit: str = "new") -> Result:
    return Result(file, commit, "2026-11-26", passed=3, failed=0, seconds=1.5)


def test_a_newer_result_takes_the_place_of_the_last_of_its_file_and_files_that_are_gone_go() -> None:
    before = [result("gone"), result("b", "old"), result("a", "old")]
    assert kept(before, result("a"), there=["a", "b", "c"]) == [result("a"), result("b", "old")]


def test_results_survive_their_file(tmp_path: Path) -> None:
    file = tmp_path / "results" / "latest.json"
    assert read(file) == []
    write([result("a"), result("b")], file)
    assert read(file) == [result("a"), result("b")]
