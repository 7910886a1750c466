"""The alerts: what is compared with what, for how long, and what to say. docs/runbook.md has an entry for each."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from monitoring.promql import FLEET, POD, PROXY, by, increase, of, of_operator, ratio, share, total
from rolloutfleet.cli.status import MOST_FORKS
from rolloutfleet_operator.policy.reasons import Metric
from rolloutfleet_proxy.domain import ledger

OPERATOR: Final = "namespace"
PROBLEM: Final = "namespace, reason"
LEDGER: Final = f"{POD}, kind"
RUNBOOK: Final = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Condition:
    """A figure, which there always is, and what it must not be."""

    figure: str
    comparison: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """All conditions have the same labels, and hold at once; `$value` is the first's figure."""

    name: str
    conditions: tuple[Condition, ...]
    lasts: str
    severity: Literal["warning", "critical"]
    summary: str
    description: str

    @property
    def expression(self) -> str:
        return " and ".join(f"({each.figure}) {each.comparison}" for each in self.conditions)

    def rule(self) -> dict[str, Any]:
        """As Prometheus reads it."""
        said = {
            "summary": self.summary,
            "description": self.description,
            "runbook": f"{RUNBOOK}#{self.name.lower()}",
        }
        labels = {"severity": self.severity}
        return {"alert": self.name, "expr": self.expression, "for": self.lasts, "labels": labels, "annotations": said}


_PROXY_NAME: Final = "{{ $labels.fleet }}/{{ $labels.pod }}"
_FLEET_NAME: Final = "{{ $labels.fleet }}"
_PERCENT: Final = "{{ $value | humanizePercentage }}"

_NOT_PAUSED: Final = Condition(by(FLEET, of(PROXY.paused), "max"), "== 0")
_FOLLOW_UPS: Final = by(FLEET, increase(of(PROXY.follow_ups), "1h"))
_CALLS: Final = by(FLEET, increase(of(PROXY.call_seconds, ending="_count"), "10m"))
_GENERATIONS: Final = by(FLEET, increase(of(PROXY.generations), "10m"))
_COMMITS: Final = of(PROXY.step_seconds, ending="_count", step="commit")
_IN: Final = "|".join((ledger.CREATED, ledger.IMPORTED))
_OUT: Final = "|".join(term for term in ledger.TERMS if term not in (ledger.CREATED, ledger.IMPORTED))

OF_PROXIES: Final = (
    Alert(
        name="RolloutFleetDown",
        conditions=(Condition(by(POD, 'up{fleet=~".+"}', "max"), "== 0"),),
        lasts="5m",
        severity="critical",
        summary=f"{_PROXY_NAME} does not answer",
        description="Prometheus got no metrics for 5 minutes. Calls of its sessions wait or fail.",
    ),
    Alert(
        name="RolloutFleetMemoryOverBudget",
        conditions=(
            Condition(
                ratio(
                    by(POD, of(PROXY.memory_bytes, kind="rss"), "max"), by(POD, of(PROXY.memory_budget_bytes), "max")
                ),
                "> 1",
            ),
        ),
        lasts="15m",
        severity="warning",
        summary=f"{_PROXY_NAME} is over its memory budget",
        description=f"It has used {_PERCENT} of memory.rssBudget and was not restarted, or a restart did not help.",
    ),
    Alert(
        name="RolloutFleetSessionsStuck",
        conditions=(
            Condition(by(FLEET, increase(_COMMITS, "30m")), "== 0"),
            Condition(by(FLEET, of(PROXY.sessions_open)), "> 0"),
            _NOT_PAUSED,
        ),
        lasts="10m",
        severity="warning",
        summary=f"{_FLEET_NAME}: sessions are open, and none makes progress",
        description="No turn was committed for 30 minutes, though sessions are open and nothing is paused.",
    ),
    Alert(
        name="RolloutFleetCallsStuck",
        conditions=(
            Condition(by(POD, increase(of(PROXY.call_seconds, ending="_count"), "20m")), "== 0"),
            Condition(by(POD, f"min_over_time({of(PROXY.calls_in_flight)}[20m])", "min"), "> 0"),
            Condition(by(POD, of(PROXY.paused), "max"), "== 0"),
        ),
        lasts="5m",
        severity="critical",
        summary=f"{_PROXY_NAME}: calls are in flight, and none ends",
        description="Turns were in progress for 20 minutes, and no call ended. The engines are not paused.",
    ),
    Alert(
        name="RolloutFleetSweepsFailing",
        conditions=(Condition(by(POD, of(PROXY.groups_not_reclaimed), "max"), "> 0"),),
        lasts="10m",
        severity="warning",
        summary=f"{_PROXY_NAME} can't reclaim sessions",
        description="{{ $value }} groups of unused sessions could not be dumped. They are kept, and the store grows.",
    ),
    Alert(
        name="RolloutFleetDiskLow",
        conditions=(
            Condition(
                ratio(
                    by(POD, of(PROXY.disk_bytes, kind="free"), "min"),
                    by(POD, of(PROXY.disk_bytes, kind="total"), "min"),
                ),
                "< 0.1",
            ),
        ),
        lasts="5m",
        severity="warning",
        summary=f"The disk of {_PROXY_NAME} is nearly full",
        description=f"{_PERCENT} of the disk that holds its store is free.",
    ),
    Alert(
        name="RolloutFleetDiskFull",
        conditions=(Condition(by(POD, of(PROXY.store_full), "max"), "> 0"),),
        lasts="1m",
        severity="critical",
        summary=f"The disk of {_PROXY_NAME} is full",
        description="Calls are refused with 507 store_full. What was answered is safe.",
    ),
    Alert(
        name="RolloutFleetStoreDamaged",
        conditions=(Condition(by(POD, of(PROXY.damage_found), "max"), "> 0"),),
        lasts="1m",
        severity="critical",
        summary=f"The disk of {_PROXY_NAME} has changed what was written to it",
        description="{{ $value }} trajectories, turns or rows are damaged, and given to nobody. The log names each.",
    ),
    Alert(
        name="RolloutFleetStoreFilling",
        conditions=(
            Condition(
                ratio(
                    total(by(POD, of(PROXY.store_bytes), "max"), by(POD, of(PROXY.shards, kind="bytes"), "max")),
                    by(POD, of(PROXY.store_limit_bytes), "max"),
                ),
                "> 0.9",
            ),
        ),
        lasts="5m",
        severity="warning",
        summary=f"The store of {_PROXY_NAME} is near its limit",
        description=f"It has {_PERCENT} of what it may hold. At 100% no session is started (429 no_room).",
    ),
    Alert(
        name="RolloutFleetBranching",
        conditions=(
            Condition(
                share(by(FLEET, increase(of(PROXY.follow_ups, kind="branch"), "1h")), _FOLLOW_UPS), f"> {MOST_FORKS}"
            ),
            Condition(_FOLLOW_UPS, "> 20"),
        ),
        lasts="15m",
        severity="warning",
        summary=f"{_FLEET_NAME}: many turns are forks",
        description=f"{_PERCENT} of the turns that follow an answer don't extend it: their history is trained again.",
    ),
    Alert(
        name="RolloutFleetCallsRefused",
        conditions=(
            Condition(
                share(by(FLEET, increase(of(PROXY.call_seconds, ending="_count", result="failed"), "10m")), _CALLS),
                "> 0.05",
            ),
        ),
        lasts="10m",
        severity="warning",
        summary=f"{_FLEET_NAME}: chat calls get no answer",
        description=f"{_PERCENT} of the calls of 10 minutes were refused, failed, or were given up by their caller.",
    ),
    Alert(
        name="RolloutFleetEnginesFailing",
        conditions=(Condition(share(by(FLEET, increase(of(PROXY.engine_failures), "10m")), _GENERATIONS), "> 0.05"),),
        lasts="10m",
        severity="warning",
        summary=f"{_FLEET_NAME}: requests to the engines fail",
        description=f"{_PERCENT} of the requests to the gateway in 10 minutes produced no turn.",
    ),
    Alert(
        name="RolloutFleetPausedTooLong",
        conditions=(Condition(by(FLEET, of(PROXY.past_max_hold), "max"), "> 0"),),
        lasts="1m",
        severity="critical",
        summary=f"{_FLEET_NAME} was paused and not continued",
        description="The pause has lasted longer than sessions.maxHold: calls get 503. Only the trainer ends a pause.",
    ),
    Alert(
        name="RolloutFleetLedgerUnbalanced",
        conditions=(
            Condition(
                f"abs({by(LEDGER, of(PROXY.ledger, term=_IN))} - {by(LEDGER, of(PROXY.ledger, term=_OUT))})",
                "> 0",
            ),
        ),
        lasts="5m",
        severity="critical",
        summary=f"{_PROXY_NAME}: {{{{ $labels.kind }}}} are missing from the ledger",
        description="Created + imported and what became of them differ by {{ $value }}. This is a defect.",
    ),
)

OF_OPERATORS: Final = (
    Alert(
        name="RolloutFleetOperatorPassesFailing",
        conditions=(Condition(by(OPERATOR, increase(of_operator(Metric.PASS_ERRORS), "15m")), "> 2"),),
        lasts="5m",
        severity="warning",
        summary="The operator in {{ $labels.namespace }} fails",
        description="{{ $value | humanize }} passes over fleets failed in 15 minutes. Its log says why.",
    ),
    Alert(
        name="RolloutFleetOperatorNotLeading",
        conditions=(Condition(by(OPERATOR, of_operator(Metric.LEADING), "max"), "== 0"),),
        lasts="10m",
        severity="critical",
        summary="The operator in {{ $labels.namespace }} does not act",
        description="It does not hold its Lease: nobody restarts, scales or repairs its fleets. Those go on serving.",
    ),
    Alert(
        name="RolloutFleetProblem",
        conditions=(Condition(by(PROBLEM, of_operator(Metric.PROBLEMS), "max"), "> 0"),),
        lasts="15m",
        severity="warning",
        summary="Fleets have the problem {{ $labels.reason }}",
        description="{{ $value }} of them. kubectl get rolloutfleets --all-namespaces names them.",
    ),
)

ALERTS: Final = (*OF_PROXIES, *OF_OPERATORS)


def rules() -> dict[str, Any]:
    """The file of rules, as Prometheus reads it."""
    groups = {"rolloutfleet": OF_PROXIES, "rolloutfleet-operator": OF_OPERATORS}
    return {"groups": [{"name": name, "rules": [each.rule() for each in alerts]} for name, alerts in groups.items()]}
