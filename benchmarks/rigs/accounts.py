"""What a proxy says that it kept, held against what its clients saw."""

import re
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.rigs.figures import Figure, exactly, figure
from benchmarks.rigs.load import Answers
from benchmarks.rigs.stack import Proxy

PREFIX_CHECKS = re.compile(r'^rolloutfleet_prefix_checks_total\{result="(?P<result>\w+)"\} (?P<n>\S+)$', re.MULTILINE)


def checks(proxy: Proxy, runs: Sequence[Answers], *, label: str) -> list[Figure]:
    """Committed turns = 2xx answers; passed prefix checks = committed turns that are not a session's first.

    `label` ends the figures' names: a table has each name once.
    """
    return checks_of([proxy], runs, label=label)


def checks_of(proxies: Sequence[Proxy], runs: Sequence[Answers], *, label: str) -> list[Figure]:
    """The same for proxies that shared the load."""
    audits = [proxy.get_json("/audit") for proxy in proxies]
    committed = sum(audit["turns"]["created"] for audit in audits)
    passed = sum(prefix_checks(proxy.get("/metrics").decode()).get("passed", 0) for proxy in proxies)
    answered = sum(run.answers for run in runs)
    followed = sum(run.answers - run.first_turns for run in runs)
    return [
        figure(f"turns_committed_{label}", "turns", [committed]),
        _must_be_0(f"answers_not_committed_{label}", "turns", answered - committed),
        _must_be_0(f"prefix_checks_missing_{label}", "turns", followed - passed),
        _must_be_0(f"audit_unbalanced_{label}", "stores", sum(not audit["balanced"] for audit in audits)),
        _must_be_0(f"errors_{label}", "errors", sum(run.failed for run in runs)),
    ]


def together(checks: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Several proxies' checks, one after the other, as one of each name; what misses in one does not make up for what
    another has too many."""
    return [
        replace(same[0], samples=(sum(abs(each.samples[0]) for each in same),)) for same in zip(*checks, strict=True)
    ]


def _must_be_0(name: str, unit: str, value: float) -> Figure:
    return figure(name, unit, [value], goal=exactly(0), check=True)


def prefix_checks(exposition: str) -> dict[str, int]:
    """Prefix checks by result, from the text of /metrics."""
    return {found["result"]: int(float(found["n"])) for found in PREFIX_CHECKS.finditer(exposition)}
