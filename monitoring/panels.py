"""What the dashboard shows, row by row."""

from dataclasses import dataclass, field
from typing import Final, Literal

from monitoring.promql import (
    FLEET,
    POD,
    PROXY,
    SCOPE,
    by,
    of,
    of_operator,
    per_second,
    quantile,
    ratio,
    share,
    total,
)
from rolloutfleet_operator.policy.reasons import Metric
from rolloutfleet_proxy.domain import ledger
from rolloutfleet_proxy.telemetry.metrics import BRANCH

WINDOW: Final = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    queries: tuple[Query, ...]
    about: str
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class PanelRow:
    title: str
    panels: tuple[Panel, ...] = field(default_factory=tuple)


_OF_PROXY: Final = "{{fleet}}/{{pod}}"
_CALL_COUNTS: Final = of(PROXY.call_seconds, ending="_count", scope=SCOPE)
_PASS_BUCKETS: Final = per_second(of_operator(Metric.PASS_SECONDS, ending="_bucket"), WINDOW)
_TERMS: Final = "|".join((ledger.LIVE, ledger.LEASED, ledger.ACKNOWLEDGED, ledger.DUMPED, ledger.DISCARDED))


def _sum(title: str, expression: str, about: str, *, unit: str = "short") -> Panel:
    """One figure of all fleets that are chosen."""
    return Panel(title=title, queries=(Query(f"sum({expression})"),), about=about, unit=unit, kind="stat")


def _rates(title: str, series: str, label: str, about: str, *, unit: str = "cps") -> Panel:
    """How often a second, by a label of the counter."""
    return Panel(
        title=title,
        queries=(Query(by(f"{FLEET}, {label}", per_second(series, WINDOW)), f"{{{{{label}}}}}"),),
        about=about,
        unit=unit,
        stacked=True,
    )


def _each(title: str, about: str, *queries: Query, unit: str = "short", stacked: bool = False) -> Panel:
    return Panel(title=title, queries=queries, about=about, unit=unit, stacked=stacked)


def _of_each_proxy(series: str, legend: str = _OF_PROXY) -> Query:
    return Query(by(POD, series, "max"), legend)


OVERVIEW: Final = PanelRow(
    "Overview",
    (
        _sum("Proxies", 'up{fleet=~".+",' + SCOPE + "}", "Proxies and gateways that Prometheus reaches."),
        _sum("Open sessions", of(PROXY.sessions_open, scope=SCOPE), "Sessions that may still make calls."),
        _sum("In flight", of(PROXY.calls_in_flight, scope=SCOPE), "Turns in progress."),
        _sum(
            "Sampled tokens a second",
            per_second(of(PROXY.tokens, scope=SCOPE, kind="completion"), WINDOW),
            "Tokens of committed turns that the engines sampled.",
            unit="cps",
        ),
        _sum("Paused proxies", of(PROXY.paused, scope=SCOPE), "Generation waits for a weight update."),
        Panel(
            title="Alerts",
            queries=(Query('count(ALERTS{alertname=~"RolloutFleet.+",alertstate="firing"}) or vector(0)'),),
            about="Firing alerts of the rules that come with this dashboard.",
            kind="stat",
        ),
    ),
)

CALLS: Final = PanelRow(
    "Calls",
    (
        _rates("Chat calls", of(PROXY.calls, scope=SCOPE), "outcome", "Finished calls a second, by outcome."),
        _each(
            "Duration of chat calls",
            "From a call's arrival to its end, of calls that were answered or failed.",
            *(
                Query(quantile(q, PROXY.call_seconds, WINDOW, scope=SCOPE), f"{{{{fleet}}}} p{q * 100:.0f}")
                for q in (0.5, 0.99)
            ),
            unit="s",
        ),
        _each(
            "Where the time of turns goes",
            "Seconds spent in each step, for each second: 2 means that two turns were in that step on average.",
            Query(
                by(f"{FLEET}, step", per_second(of(PROXY.step_seconds, ending="_sum", scope=SCOPE), WINDOW)), "{{step}}"
            ),
            stacked=True,
        ),
        _rates("Refusals", of(PROXY.refused, scope=SCOPE), "reason", "Errors answered a second, by code."),
        _each(
            "Calls without an answer",
            "Share of chat calls that were refused, failed, or were given up by their caller.",
            Query(
                share(
                    by(
                        FLEET, per_second(of(PROXY.call_seconds, ending="_count", scope=SCOPE, result="failed"), WINDOW)
                    ),
                    by(FLEET, per_second(_CALL_COUNTS, WINDOW)),
                ),
                "{{fleet}}",
            ),
            unit="percentunit",
        ),
        _each(
            "Calls that wait",
            "Chat calls held by a pause or a drain, and turns in progress.",
            Query(by(f"{FLEET}, by", of(PROXY.calls_held, scope=SCOPE)), "{{by}}"),
            Query(by(FLEET, of(PROXY.calls_in_flight, scope=SCOPE)), "in flight"),
        ),
    ),
)

CAPTURE: Final = PanelRow(
    "Capture",
    (
        _rates(
            "Tokens", of(PROXY.tokens, scope=SCOPE), "kind", "Tokens of committed turns a second: prompt, completion."
        ),
        _rates("Turns", of(PROXY.turns, scope=SCOPE), "kind", "Committed turns a second, by how they follow others."),
        _each(
            "Fork ratio",
            "Share of the turns that follow an answer and start a branch instead of extending it.",
            Query(
                share(
                    by(FLEET, per_second(of(PROXY.follow_ups, scope=SCOPE, kind=BRANCH), WINDOW)),
                    by(FLEET, per_second(of(PROXY.follow_ups, scope=SCOPE), WINDOW)),
                ),
                "{{fleet}}",
            ),
            unit="percentunit",
        ),
        _rates("Forks", of(PROXY.branches, scope=SCOPE), "reason", "Turns that fork, by what differs."),
        _each(
            "Weights",
            "The version of the weights, and whether they are paused.",
            _of_each_proxy(of(PROXY.weights, scope=SCOPE, kind="version"), f"{_OF_PROXY} version"),
        ),
        _each(
            "Pauses",
            "1 while generation is paused; 2 if the pause has lasted longer than sessions.maxHold.",
            Query(
                total(
                    by(POD, of(PROXY.paused, scope=SCOPE), "max"), by(POD, of(PROXY.past_max_hold, scope=SCOPE), "max")
                ),
                _OF_PROXY,
            ),
        ),
    ),
)

SESSIONS: Final = PanelRow(
    "Sessions and trajectories",
    (
        _each("Open sessions", "By proxy.", _of_each_proxy(of(PROXY.sessions_open, scope=SCOPE)), stacked=True),
        _each(
            "Turns by what became of them",
            "The ledger: these sums are equal to created + imported.",
            Query(by(f"{FLEET}, term", of(PROXY.ledger, scope=SCOPE, kind=ledger.TURNS, term=_TERMS)), "{{term}}"),
            stacked=True,
        ),
        _rates(
            "Reclaimed sessions",
            of(PROXY.sessions_reclaimed, scope=SCOPE),
            "reason",
            "Sessions that nobody used or claimed, dumped and freed.",
        ),
        _each(
            "Groups that could not be reclaimed",
            "By the last sweep: their dumps could not be written.",
            _of_each_proxy(of(PROXY.groups_not_reclaimed, scope=SCOPE)),
        ),
        _each(
            "Requests to the engines",
            "Requests to the gateway a second, and those that produced no turn.",
            Query(by(FLEET, per_second(of(PROXY.generations, scope=SCOPE), WINDOW)), "{{fleet}} all"),
            Query(by(f"{FLEET}, code", per_second(of(PROXY.engine_failures, scope=SCOPE), WINDOW)), "{{code}}"),
            unit="cps",
        ),
        _each(
            "Queues",
            "Items that wait for each thread of a proxy.",
            Query(by(f"{FLEET}, queue", of(PROXY.queue_length, scope=SCOPE), "max"), "{{queue}}"),
        ),
    ),
)

RESOURCES: Final = PanelRow(
    "Memory and disk",
    (
        _each(
            "Memory against the budget",
            "Resident memory of each proxy's processes, and memory.rssBudget.",
            _of_each_proxy(of(PROXY.memory_bytes, scope=SCOPE, kind="rss")),
            Query(by(FLEET, of(PROXY.memory_budget_bytes, scope=SCOPE), "max"), "{{fleet}} budget"),
            unit="bytes",
        ),
        _each(
            "Store against its limit",
            "Store and shards, and the size from which on no session is started.",
            Query(
                total(
                    by(POD, of(PROXY.store_bytes, scope=SCOPE), "max"),
                    by(POD, of(PROXY.shards, scope=SCOPE, kind="bytes"), "max"),
                ),
                _OF_PROXY,
            ),
            _of_each_proxy(of(PROXY.store_limit_bytes, scope=SCOPE), f"{_OF_PROXY} limit"),
            unit="bytes",
        ),
        _each(
            "Free disk",
            "Share of the disk of each store that is free.",
            Query(
                ratio(
                    by(POD, of(PROXY.disk_bytes, scope=SCOPE, kind="free"), "max"),
                    by(POD, of(PROXY.disk_bytes, scope=SCOPE, kind="total"), "max"),
                ),
                _OF_PROXY,
            ),
            unit="percentunit",
        ),
        _each(
            "Caches",
            "Bytes of each cache, and of requests in progress.",
            Query(by(f"{FLEET}, cache", of(PROXY.cache_bytes, scope=SCOPE)), "{{cache}}"),
            Query(by(FLEET, of(PROXY.request_bytes, scope=SCOPE)), "requests"),
            unit="bytes",
            stacked=True,
        ),
    ),
)

OPERATOR: Final = PanelRow(
    "Operator",
    (
        _each(
            "Passes",
            "Passes over fleets a second, and those that failed.",
            Query(by("namespace", per_second(of_operator(Metric.PASS_SECONDS, ending="_count"), WINDOW)), "all"),
            Query(by("namespace", per_second(of_operator(Metric.PASS_ERRORS), WINDOW)), "failed"),
            unit="cps",
        ),
        _each(
            "Duration of a pass",
            "Of 99 in 100 passes.",
            Query(
                f"histogram_quantile(0.99, {by('namespace, le', _PASS_BUCKETS)})",
                "p99",
            ),
            unit="s",
        ),
        _each(
            "Fleets",
            "By condition and its status.",
            Query(by("condition, status", of_operator(Metric.FLEETS)), "{{condition}} {{status}}"),
        ),
        _each(
            "Problems",
            "Fleets with a problem, by its reason.",
            Query(by("reason", of_operator(Metric.PROBLEMS)), "{{reason}}"),
        ),
        _each(
            "Restarts of proxies, and lost stores",
            "Restarts by reason; in an hour.",
            Query(by("fleet, reason", f"increase({of_operator(Metric.RESTARTS)}[1h])"), "{{fleet}} {{reason}}"),
            Query(by("fleet", f"increase({of_operator(Metric.STORES_LOST)}[1h])"), "{{fleet}} lost stores"),
        ),
        _each(
            "Memory as the operator sees it",
            "As last sampled, against the budget.",
            Query(by(POD, of_operator(Metric.PROXY_RSS, scope=SCOPE), "max"), _OF_PROXY),
            Query(by(FLEET, of_operator(Metric.PROXY_BUDGET, scope=SCOPE), "max"), "{{fleet}} budget"),
            unit="bytes",
        ),
        _each(
            "Slots and leadership",
            "Restarts in progress, and whether the operator acts.",
            Query(by("namespace", of_operator(Metric.SLOTS_HELD)), "restarts in progress"),
            Query(by("namespace", of_operator(Metric.LEADING), "max"), "leading"),
        ),
        _each(
            "Polls without an answer",
            "Of proxies, a second.",
            Query(by(FLEET, per_second(of_operator(Metric.POLLS_FAILED, scope=SCOPE), WINDOW)), "{{fleet}}"),
            unit="cps",
        ),
    ),
)

ROWS: Final = (OVERVIEW, CALLS, CAPTURE, SESSIONS, RESOURCES, OPERATOR)
