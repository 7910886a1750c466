"""Results of full runs: what is kept, and what is still to be run."""

from pathlib import Path

import pytest
from e2e import results, running
from e2e.results import Result

REPORT = """<testsuites><testsuite>
<testcase name="test_well" time="1.25"/>
<testcase name="test_some[a]" time="1.0"/>
<testcase name="test_some[b]" time="2.0"><failure message="no"/></testcase>
<testcase name="test_left_out" time="0"><skipped/></testcase>
<testcase name="test_unset" time="0.5"><error message="in its fixture"/></testcase>
</testsuite></testsuites>"""


def result(scenario: str, *, passed: bool = True, commit: str = "new") -> Result:
    return Result(scenario=scenario, passed=passed, seconds=1, commit=commit)


def test_a_scenario_passes_only_if_every_one_of_its_parameters_does(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    found = {each.scenario: each for each in results.of_report(report, "test_file.py", commit="c")}
    assert {name: each.passed for name, each in found.items()} == {
        "test_file.py::test_well": True,
        "test_file.py::test_some": False,
        "test_file.py::test_left_out": False,
        "test_file.py::test_unset": False,
    }
    assert found["test_file.py::test_some"].seconds == 3.0


def test_a_run_that_ends_badly_has_failed_whatever_its_tests_say(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuite><testcase classname="e2e.test_file" name="test_well" time="1.0"/></testsuite>')
    well = "test_file.py::test_well"

    def of(status: int, report: Path = report) -> dict[str, bool]:
        return {each.scenario: each.passed for each in results.of_run(report, well, status=status, commit="c")}

    assert of(0) == {well: True}
    assert of(1) == {well: False}, "its fixtures could not be taken down"
    assert of(2, tmp_path / "absent.xml") == {well: False}
    assert of(pytest.ExitCode.NO_TESTS_COLLECTED, tmp_path / "absent.xml") == {}


def test_newer_results_replace_older_ones_and_scenarios_that_are_gone_go() -> None:
    earlier = [result("a", passed=False, commit="old"), result("gone"), result("b", commit="old")]
    assert results.merged(earlier, [result("a")], there=["a", "b"]) == [result("a"), result("b", commit="old")]


def test_runs_that_pass_at_one_commit_are_counted() -> None:
    kept = [result("a")]
    for passed, commit, runs in [(True, "new", 2), (True, "new", 3), (True, "newer", 1), (False, "newer", 1)]:
        kept = results.merged(kept, [result("a", passed=passed, commit=commit)], there=["a"])
        assert [each.runs for each in kept] == [runs]
        assert results.lacking(kept, there=["a"], runs=3) == (["a"] if runs < 3 else [])


def test_what_failed_or_has_not_run_is_still_lacking() -> None:
    assert results.lacking([result("a"), result("b", passed=False)], there=["a", "b", "c"]) == ["b", "c"]


def test_results_survive_their_file(tmp_path: Path) -> None:
    kept = [result("a"), result("b", passed=False)]
    results.write(kept, tmp_path / "latest.json")
    assert results.read(tmp_path / "latest.json") == kept
    assert results.read(tmp_path / "absent.json") == []


def test_results_are_added_one_by_one_to_those_that_are_kept(tmp_path: Path) -> None:
    path, (one, other, *_) = tmp_path / "latest.json", results.scenarios()
    results.add([result(one, passed=False), result("of a test that is gone")], path)
    results.add([result(other)], path)
    results.add([result(one)], path)
    assert results.read(path) == [result(one), result(other)]
    assert [file.name for file in tmp_path.iterdir()] == ["latest.json"]


def test_every_test_of_the_cluster_is_a_scenario_and_of_the_core_unless_it_is_marked() -> None:
    there, core = results.scenarios(), results.core()
    of_the_core = "test_cluster.py::test_every_node_is_ready", "test_deletion.py::test_a_fleet_ends_and_its_claims_stay"
    marked = (
        "test_life.py::test_a_fleet_that_is_suspended_and_resumed_under_agents_keeps_every_turn",
        "test_gpus.py::test_engines_wait_for_gpus_by_name_and_the_gateway_goes_where_they_are",
    )
    assert {*of_the_core, *marked} <= set(there)
    assert set(of_the_core) <= set(core) and not set(marked) & set(core)


def test_only_what_needs_no_operator_runs_beside_one_of_the_whole_cluster_and_what_is_alone_runs_last() -> None:
    first, second, third = running.plan(results.scenarios())
    installed, *beside = [{each.partition("::")[0] for each in lane} for lane in first]
    assert installed == {"test_install.py"} and {"test_cluster.py", "test_images.py"} == set().union(*beside)
    assert (
        all(len(lane) == 1 for lane in second)
        and ["test_deletion.py::test_its_namespace_ends_with_all_of_it"] in second
    )
    [alone] = third
    assert "test_outages.py::test_a_drain_takes_a_node_local_proxy_under_maintenance_alone" in alone
    assert sorted(name for lane in (*first, *second, *third) for name in lane) == sorted(results.scenarios())


def test_every_scenario_there_is_passed_in_the_full_run_that_is_committed() -> None:
    """What is named was not run since it is there, or failed: make e2e-full, and commit e2e/results/latest.json."""
    assert results.lacking(results.read(), there=results.scenarios()) == []
