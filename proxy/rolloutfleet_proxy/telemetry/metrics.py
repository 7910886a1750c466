"""Every metric of a proxy, declared once, in the order of `/metrics`.

What happens is counted where it happens: `metrics.refused.labels(code).inc()`. What merely is so is set by the route,
at a scrape. An attribute is the metric's name without `rolloutfleet_`. Labels are bounded: no session, no address,
nothing that a caller chose. The durable counters are the ledger's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.samples import Sample

from rolloutfleet_proxy.telemetry import ignored_fields
from rolloutfleet_proxy.telemetry.phases import STEPS
from rolloutfleet_proxy.telemetry.software import versions

COMMITTED = "committed"
REPLAYED = "replayed"
JOINED = "joined"
FIRST = "first"
EXTENDING = "extending"
BRANCH = "branch"
"""How a turn stands to those before it."""
_ANSWERED = frozenset((COMMITTED, REPLAYED, JOINED))

SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
    *(300.0, 600.0),
)
"""A commit takes a millisecond, and a generation may take minutes."""
TOKENS = tuple(float(2**power) for power in range(4, 19))

# They would be a series more for each counter and histogram.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counts since the process started, each proxy's in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)

        self.calls = counter("rolloutfleet_calls", "Completed chat calls, by outcome", ["outcome"])
        self.calls_passed_on = counter(
            "rolloutfleet_calls_passed_on", "Chat calls forwarded to the proxy that owns the session", ["outcome"]
        )
        self.requests = counter(
            "rolloutfleet_requests", "Requests other than chat calls", ["method", "route", "status"]
        )
        self.refused = counter("rolloutfleet_refused", "Error responses, by code or reason", ["reason"])
        self.fields_ignored = counter(
            "rolloutfleet_fields_ignored", "Chat calls with a field that has no effect", ["field"]
        )
        self.image_placeholders = counter(
            "rolloutfleet_image_placeholders", "Images that a text stood for in prompts of committed turns"
        )
        self.special_tokens_in_text = counter(
            "rolloutfleet_special_tokens_in_text",
            "Control tokens that texts of committed turns spell, and that were read as text",
        )
        self.turns = counter(
            "rolloutfleet_turns", "Committed turns: first of a lineage, extending a parent, starting a branch", ["kind"]
        )
        self.branches = counter(
            "rolloutfleet_branches",
            "Forks: turns that follow an answer and start a branch, by what differs",
            ["reason"],
        )
        self.follow_ups = counter("rolloutfleet_follow_ups", "Turns after an answer: extending, branch", ["kind"])
        self.turns_ended = counter("rolloutfleet_turns_ended", "Turns that were started, by outcome", ["outcome"])
        self.turns_unwaited = counter(
            "rolloutfleet_turns_unwaited", "Turns whose client had disconnected when they ended", ["outcome"]
        )
        self.tokens = counter("rolloutfleet_tokens", "Tokens of committed turns", ["kind"])
        self.prefix_checks = counter(
            "rolloutfleet_prefix_checks", "Comparisons of a prompt's ids with an earlier turn's", ["result"]
        )
        self.generations = counter("rolloutfleet_generations", "Requests sent to the gateway")
        self.engine_failures = counter(
            "rolloutfleet_engine_failures", "Requests to the gateway that yielded no turn", ["code"]
        )
        self.version_differences = counter(
            "rolloutfleet_version_differences",
            "Turns whose engine reported a weight version that this proxy did not know",
        )
        self.sessions_reclaimed = counter(
            "rolloutfleet_sessions_reclaimed", "Sessions reclaimed as unused or unclaimed", ["reason"]
        )
        self.dump_failures = counter("rolloutfleet_dump_failures", "Failed attempts to reclaim a group")
        self.groups_not_reclaimed = gauge(
            "rolloutfleet_groups_not_reclaimed", "Groups that the last sweep failed to reclaim"
        )
        self.damage_found = counter(
            "rolloutfleet_damage_found", "Trajectories, turns and rows that the disk was found to have changed"
        )
        self.sessions_kept = counter(
            "rolloutfleet_sessions_kept", "Trained sessions drawn to be kept as a copy, by what came of it", ["outcome"]
        )
        self.call_seconds = histogram(
            "rolloutfleet_call_seconds", "Duration of a chat call, from arrival to end", ["result"], buckets=SECONDS
        )
        self.step_seconds = histogram(
            "rolloutfleet_step_seconds", "Duration of the steps of committed turns", ["step"], buckets=SECONDS
        )
        self.turn_tokens = histogram("rolloutfleet_turn_tokens", "Tokens of a committed turn", ["kind"], buckets=TOKENS)
        self.calls_in_flight = gauge("rolloutfleet_calls_in_flight", "Turns in progress")

        self.calls_held = gauge("rolloutfleet_calls_held", "Calls waiting, by what holds them", ["by"])
        self.request_bytes = gauge("rolloutfleet_request_bytes", "Bytes held by requests in progress")
        self.draining = gauge("rolloutfleet_draining", "1 while no new sessions are taken")
        self.paused = gauge("rolloutfleet_paused", "1 while the weights are paused")
        self.past_max_hold = gauge("rolloutfleet_past_max_hold", "1 while calls get 503, since a pause lasts too long")
        self.weights = gauge("rolloutfleet_weights", "Version, run and epoch of the weights", ["kind"])
        self.sessions_open = gauge("rolloutfleet_sessions_open", "Open sessions")
        self.ledger = gauge(
            "rolloutfleet_ledger", "Turns and sessions, by their term in the ledger", ["kind", "term", "reason"]
        )
        self.keys = gauge("rolloutfleet_keys", "Session keys")
        self.shards = gauge("rolloutfleet_shards", "Shards: count, bytes", ["kind"])
        self.memory_bytes = gauge("rolloutfleet_memory_bytes", "Memory of the proxy's process tree", ["kind"])
        self.memory_budget_bytes = gauge("rolloutfleet_memory_budget_bytes", "The fleet's memory.rssBudget")
        self.cache_bytes = gauge("rolloutfleet_cache_bytes", "Size of the caches", ["cache"])
        self.store_bytes = gauge("rolloutfleet_store_bytes", "Size of the store's files")
        self.store_limit_bytes = gauge(
            "rolloutfleet_store_limit_bytes", "Size of store and shards from which on no session is started"
        )
        self.store_full = gauge("rolloutfleet_store_full", "1 while calls are refused for lack of disk space")
        self.disk_bytes = gauge("rolloutfleet_disk_bytes", "The disk of the store: total, free", ["kind"])
        self.queue_length = gauge("rolloutfleet_queue_length", "Length of queues", ["queue"])
        self.log_dropped = counter("rolloutfleet_log_dropped", "Log lines dropped")
        Info("rolloutfleet", "Versions of the software", registry=self.registry).info(versions())

        self._call_seconds = [self.call_seconds.labels(each) for each in ("answered", "failed")]
        self._step_seconds = [self.step_seconds.labels(step) for step in STEPS]
        self._turn_tokens = [
            (self.tokens.labels(kind), self.turn_tokens.labels(kind)) for kind in ("prompt", "completion")
        ]
        self.in_flight = 0
        """Turns being made: drains and trims go by it, too."""
        self.calls_in_flight.set_function(lambda: self.in_flight)

    def text(self) -> bytes:
        """What Prometheus reads, in its format 0.0.4."""
        return generate_latest(self.registry)

    @contextmanager
    def call_in_flight(self) -> Iterator[None]:
        """Count a turn as under way until the block ends."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def ignored(self, paths: Sequence[str]) -> None:
        """Count a request by what it asks for without effect."""
        for label in ignored_fields.labels(paths):
            self.fields_ignored.labels(label).inc()

    def call_ended(self, outcome: str, seconds: float) -> None:
        """Count a chat call that is over."""
        self.calls.labels(outcome).inc()
        self._call_seconds[outcome not in _ANSWERED].observe(seconds)

    def committed(self, kind: str, *, prompt_tokens: int, completion_tokens: int, seconds: Sequence[float]) -> None:
        """Count a committed turn; `seconds` are those of its steps."""
        self.turns.labels(kind).inc()
        for (total, each), count in zip(self._turn_tokens, (prompt_tokens, completion_tokens), strict=True):
            total.inc(count)
            each.observe(count)
        for step, took in zip(self._step_seconds, seconds, strict=True):
            step.observe(took)


def by_label(counter: Counter) -> dict[str, int]:
    """What was counted so far, by the value of the counter's only label."""
    return {sample.labels[label]: int(sample.value) for sample in _samples(counter) for label in sample.labels}


def total(counter: Counter) -> int:
    """What was counted so far, whatever the labels."""
    return int(sum(sample.value for sample in _samples(counter)))


def _samples(counter: Counter) -> Iterator[Sample]:
    for family in counter.collect():
        yield from family.samples
