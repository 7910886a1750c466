"""Each alert fires when what it is about lasts, says what it should, and does not fire otherwise (promtool)."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from monitoring.alerts import ALERTS, RUNBOOK
from monitoring.files import CHART, RULES
from tests.system.monitoring.prometheus import program

Series = Mapping[str, str]
"""Names are as in /metrics, and values as promtool has them: `7x60` stays at 7, `0+1x60` rises by 1 a minute."""

FLEET: Final = {"namespace": "rl", "fleet": "math"}
POD: Final = {**FLEET, "pod": "proxy-0"}
OPERATOR: Final = {"namespace": "system"}
CRITICAL: Final = {
    *("RolloutFleetDown", "RolloutFleetCallsStuck", "RolloutFleetDiskFull", "RolloutFleetPausedTooLong"),
    *("RolloutFleetLedgerUnbalanced", "RolloutFleetOperatorNotLeading", "RolloutFleetStoreDamaged"),
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """Series under which an alert fires within the hour, and changes of them under which it does not."""

    fires: Series
    summary: str
    description: str
    rests: tuple[Series, ...]
    labels: Mapping[str, str] = field(default_factory=lambda: POD)


COMMITS, ENDED = 'step_seconds_count{step="commit"}', 'call_seconds_count{result="answered"}'
FOLLOW_UPS = {kind: f'follow_ups_total{{kind="{kind}"}}' for kind in ("extending", "branch")}

EXAMPLES: Final = {
    "Down": Example(
        fires={"up": "0x60"},
        rests=({"up": "1x60"}, {"up": "1x57 0x3"}),
        summary="math/proxy-0 does not answer",
        description="Prometheus got no metrics for 5 minutes. Calls of its sessions wait or fail.",
    ),
    "MemoryOverBudget": Example(
        fires={'memory_bytes{kind="rss"}': "5000x60", "memory_budget_bytes": "4000x60"},
        rests=({'memory_bytes{kind="rss"}': "4000x60"}, {'memory_bytes{kind="rss"}': "3000x50 5000x10"}),
        summary="math/proxy-0 is over its memory budget",
        description="It has used 125% of memory.rssBudget and was not restarted, or a restart did not help.",
    ),
    "SessionsStuck": Example(
        fires={COMMITS: "7x60", "sessions_open": "3x60", "paused": "0x60"},
        rests=({COMMITS: "0+1x60"}, {"sessions_open": "0x60"}, {"paused": "1x60"}),
        labels=FLEET,
        summary="math: sessions are open, and none makes progress",
        description="No turn was committed for 30 minutes, though sessions are open and nothing is paused.",
    ),
    "CallsStuck": Example(
        fires={ENDED: "7x60", "calls_in_flight": "2x60", "paused": "0x60"},
        rests=({ENDED: "0+1x60"}, {"calls_in_flight": "2x50 0 2x9"}, {"paused": "1x60"}),
        summary="math/proxy-0: calls are in flight, and none ends",
        description="Turns were in progress for 20 minutes, and no call ended. The engines are not paused.",
    ),
    "SweepsFailing": Example(
        fires={"groups_not_reclaimed": "2x60"},
        rests=({"groups_not_reclaimed": "0x60"},),
        summary="math/proxy-0 can't reclaim sessions",
        description="2 groups of unused sessions could not be dumped. They are kept, and the store grows.",
    ),
    "DiskLow": Example(
        fires={'disk_bytes{kind="free"}': "5x60", 'disk_bytes{kind="total"}': "100x60"},
        rests=({'disk_bytes{kind="free"}': "11x60"},),
        summary="The disk of math/proxy-0 is nearly full",
        description="5% of the disk that holds its store is free.",
    ),
    "DiskFull": Example(
        fires={"store_full": "1x60"},
        rests=({"store_full": "0x60"},),
        summary="The disk of math/proxy-0 is full",
        description="Calls are refused with 507 store_full. What was answered is safe.",
    ),
    "StoreDamaged": Example(
        fires={"damage_found_total": "2x60"},
        rests=({"damage_found_total": "0x60"},),
        summary="The disk of math/proxy-0 has changed what was written to it",
        description="2 trajectories, turns or rows are damaged, and given to nobody. The log names each.",
    ),
    "StoreFilling": Example(
        fires={"store_bytes": "80x60", 'shards{kind="bytes"}': "15x60", "store_limit_bytes": "100x60"},
        rests=({'shards{kind="bytes"}': "5x60"}, {"store_limit_bytes": "200x60"}),
        summary="The store of math/proxy-0 is near its limit",
        description="It has 95% of what it may hold. At 100% no session is started (429 no_room).",
    ),
    "Branching": Example(
        fires={FOLLOW_UPS["extending"]: "0+9x60", FOLLOW_UPS["branch"]: "0+1x60"},
        rests=(
            {FOLLOW_UPS["branch"]: "0+0.4x60"},
            {FOLLOW_UPS["extending"]: "0+0.2x60", FOLLOW_UPS["branch"]: "0+0.1x60"},
        ),
        labels=FLEET,
        summary="math: many turns are forks",
        description="10% of the turns that follow an answer don't extend it: their history is trained again.",
    ),
    "CallsRefused": Example(
        fires={ENDED: "0+9x60", 'call_seconds_count{result="failed"}': "0+1x60"},
        rests=({'call_seconds_count{result="failed"}': "0+0.4x60"},),
        labels=FLEET,
        summary="math: chat calls get no answer",
        description="10% of the calls of 10 minutes were refused, failed, or were given up by their caller.",
    ),
    "EnginesFailing": Example(
        fires={"generations_total": "0+10x60", 'engine_failures_total{code="engine_error"}': "0+1x60"},
        rests=({'engine_failures_total{code="engine_error"}': "0+0.4x60"},),
        labels=FLEET,
        summary="math: requests to the engines fail",
        description="10% of the requests to the gateway in 10 minutes produced no turn.",
    ),
    "PausedTooLong": Example(
        fires={"past_max_hold": "1x60"},
        rests=({"past_max_hold": "0x60"},),
        labels=FLEET,
        summary="math was paused and not continued",
        description="The pause has lasted longer than sessions.maxHold: calls get 503. Only the trainer ends a pause.",
    ),
    "LedgerUnbalanced": Example(
        fires={
            'ledger{kind="turns",term="created",reason=""}': "10x60",
            'ledger{kind="turns",term="live",reason=""}': "5x60",
            'ledger{kind="turns",term="discarded",reason="deleted"}': "4x60",
        },
        rests=({'ledger{kind="turns",term="discarded",reason="deleted"}': "5x60"},),
        labels={**POD, "kind": "turns"},
        summary="math/proxy-0: turns are missing from the ledger",
        description="Created + imported and what became of them differ by 1. This is a defect.",
    ),
    "OperatorPassesFailing": Example(
        fires={"operator_pass_errors_total": "0+1x60"},
        rests=({"operator_pass_errors_total": "0+0.1x60"},),
        labels=OPERATOR,
        summary="The operator in system fails",
        description="15 passes over fleets failed in 15 minutes. Its log says why.",
    ),
    "OperatorNotLeading": Example(
        fires={"operator_leading": "0x60"},
        rests=({"operator_leading": "1x60"},),
        labels=OPERATOR,
        summary="The operator in system does not act",
        description="It does not hold its Lease: nobody restarts, scales or repairs its fleets. Those go on serving.",
    ),
    "Problem": Example(
        fires={'operator_problems{reason="VolumeFull"}': "1x60"},
        rests=({'operator_problems{reason="VolumeFull"}': "0x60"},),
        labels={**OPERATOR, "reason": "VolumeFull"},
        summary="Fleets have the problem VolumeFull",
        description="1 of them. kubectl get rolloutfleets --all-namespaces names them.",
    ),
}


def series(name: str, labels: Mapping[str, str]) -> str:
    """As it is scraped: with the labels of its target."""
    bare, _, own = name.partition("{")
    scraped = ",".join(f'{label}="{value}"' for label, value in labels.items())
    told = f"{own.removesuffix('}')},{scraped}" if own else scraped
    return f"{bare if bare == 'up' else f'rolloutfleet_{bare}'}{{{told}}}"


def test_there_is_an_example_of_each_alert() -> None:
    assert [f"RolloutFleet{name}" for name in EXAMPLES] == [each.name for each in ALERTS]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_alert_fires_while_what_it_is_about_lasts_and_not_otherwise(tmp_path: Path, name: str) -> None:
    example, alert = EXAMPLES[name], f"RolloutFleet{name}"
    labels = {**example.labels, "severity": "critical" if alert in CRITICAL else "warning"}
    said = {"summary": example.summary, "description": example.description, "runbook": f"{RUNBOOK}#{alert.lower()}"}
    tests = [an_hour_of(name, example.fires, [{"exp_labels": labels, "exp_annotations": said}])]
    tests += [an_hour_of(name, {**example.fires, **changed}, []) for changed in example.rests]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(CHART / "rules" / RULES)], "tests": tests}))
    command = [program("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def an_hour_of(name: str, told: Series, expected: list[dict[str, Any]]) -> dict[str, Any]:
    """Series, and the alerts that are to fire at the hour's end, as promtool reads it."""
    target = OPERATOR if name in ("OperatorPassesFailing", "OperatorNotLeading", "Problem") else POD
    return {
        "interval": "1m",
        "input_series": [{"series": series(each, target), "values": values} for each, values in told.items()],
        "alert_rule_test": [{"eval_time": "1h", "alertname": f"RolloutFleet{name}", "exp_alerts": expected}],
    }
