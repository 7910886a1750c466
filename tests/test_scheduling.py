"""How files are spread over processes."""

from pathlib import Path

from tests.scheduling import SLOWEST, TOGETHER, is_slow, place, scope

ROOT = Path(__file__).parents[1]


def test_what_begins_first_is_there() -> None:
    assert [name for name in (*SLOWEST, *TOGETHER) if not (ROOT / name).exists()] == []


def test_files_that_share_a_server_are_run_by_one_process() -> None:
    assert scope("tests/real/test_capture.py::test_a") == scope("tests/real/test_gateway.py::test_b") == "tests/real/"
    assert scope("tests/capture/test_turns.py::test_a[x::y]") == "tests/capture/test_turns.py"


def test_the_slowest_come_first_and_others_stay_as_they_are() -> None:
    others = ["tests/test_docs.py::test_a", "tests/capture/test_turns.py::test_b"]
    slow = [f"{SLOWEST[-1]}::test_c", f"{SLOWEST[0]}test_versions.py::test_d"]
    together = ["tests/proxy/tokens/test_rules.py::test_e", "tests/proxy/tokens/test_render.py::test_f"]
    assert sorted([*others, *together, *slow], key=place) == [*reversed(slow), *together, *others]


def test_the_slowest_files_are_those_that_a_fast_run_leaves_out() -> None:
    assert is_slow("tests/capture/test_kills.py::test_a[x::y]")
    assert not is_slow("tests/capture/test_turns.py::test_b")
    assert not is_slow("tests/proxy/tokens/test_rules.py::test_c")
