"""What a proxy says that it kept, held against what its clients saw."""

import re
from collections.abc import Sequence

from benchmarks.rigs.figures import Figure, exactly, figure
from benchmarks.rigs.load import Answers
from benchmarks.rigs.stack import Proxy

PREFIX_CHECKS = re.compile(r'^rolloutfleet_prefix_checks_total\{result="(?P<result>\w+)"\} (?P<n>\S+)$', re.MULTILINE)


def checks(proxy: Proxy, runs: Sequence[Answers]) -> list[Figure]:
    """Committed turns = 2xx answers; passed prefix checks = committed turns that are not a session's first."""
    audit = proxy.get_json("/audit")
    committed = audit["turns"]["created"]
    passed = prefix_checks(proxy.get("/metrics").decode()).get("passed", 0)
    answered = sum(run.answers for run in runs)
    followed = sum(run.answers - run.first_turns for run in runs)
    return [
        _check("turns_committed", [committed]),
        _check("answers_not_committed", [answered - committed], must_be=0),
        _check("prefix_checks_missing", [followed - passed], must_be=0),
        _check("audit_unbalanced", [0 if audit["balanced"] else 1], must_be=0),
        _check("errors", [sum(run.failed for run in runs)], must_be=0),
    ]


def _check(name: str, samples: list[float], *, must_be: float | None = None) -> Figure:
    unit = "errors" if name == "errors" else "turns"
    return figure(name, unit, samples, goal=None if must_be is None else exactly(must_be), check=True)


def prefix_checks(exposition: str) -> dict[str, int]:
    """Prefix checks by result, from the text of /metrics."""
    return {found["result"]: int(float(found["n"])) for found in PREFIX_CHECKS.finditer(exposition)}
