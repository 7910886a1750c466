"""`rolloutfleet status`: how a fleet is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from rolloutfleet.cli.failures import warn_of
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_options
from rolloutfleet.cli.show import console, print_json, size, table, text
from rolloutfleet.wire import Audit, Proxy, Stats

MOST_FORKS: Final = 0.05
"""Share of follow-up turns that may be forks before that is worth a warning."""

TERMS = ("created", "imported", "live", "leased", "acknowledged", "dumped")


@takes_options
def status(options: FleetOptions, as_json: AsJson = False) -> None:
    """Show each proxy's figures, and whether every turn and session is accounted for.

    The last table is the audit: created + imported = live + leased + acknowledged + dumped + discarded. A warning
    is shown below it if more than 5 % of the turns that follow an answer are forks: they start a branch.
    """
    with options.fleet() as fleet:
        proxies, stats, audit = fleet.proxies(), fleet.stats(), fleet.audit()
    warn_of({each.ordinal: each.error.message for each in (*stats.failed, *audit.failed)})
    if as_json:
        print_json(
            {
                "proxies": [proxy.model_dump(exclude_unset=True) for proxy in proxies],
                "stats": [each.model_dump(exclude_unset=True) for each in stats.proxies],
                "audit": audit.model_dump(exclude_unset=True),
            }
        )
        return
    out = console()
    out.print(_proxies(proxies, {each.ordinal: each for each in stats.proxies}))
    out.print()
    out.print(_audit(audit))
    warning = forking(stats.proxies)
    if warning is not None:
        out.print()
        out.print(warning, style="yellow")


def forking(stats: Sequence[Stats]) -> str | None:
    """A warning of follow-up turns that are forks; None where they are few."""
    turns = sum((Counter(each.follow_ups) for each in stats), Counter[str]())
    reasons = sum((Counter(each.forks) for each in stats), Counter[str]())
    forks, followed = turns["branch"], turns.total()
    if forks <= MOST_FORKS * followed:
        return None
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3))
    return (
        f"Warning: {forks} of {followed} follow-up turns ({forks / followed:.0%}) are forks: their history "
        f"is rendered and trained again. What differed most: {why or 'nothing'}. "
        "`rolloutfleet turns SESSION` says why each one did."
    )


def _proxies(proxies: Sequence[Proxy], stats: Mapping[int, Stats]) -> Table:
    numbers = ("open", "ended", "in flight", "memory", "version")
    shown = table("proxy", "address", "state", *numbers, "paused", numbers=numbers)
    for proxy in proxies:
        figures = stats.get(proxy.ordinal)
        known = () if figures is None else _figures(figures)
        shown.add_row(str(proxy.ordinal), proxy.url, text(proxy.state), *known)
    return shown


def _figures(stats: Stats) -> tuple[str, ...]:
    return (
        str(stats.sessions.open),
        str(stats.sessions.ended),
        str(stats.in_flight),
        size(stats.rss_bytes),
        str(stats.version),
        "yes" if stats.paused else "no",
    )


def _audit(audit: Audit) -> Table:
    columns = ("", *TERMS, "discarded", "balanced")
    shown = table(*columns, numbers=columns[1:])
    for name, ledger in (("turns", audit.turns), ("sessions", audit.sessions)):
        discarded = ", ".join(f"{reason} {count}" for reason, count in ledger.discarded.items() if count)
        balanced = Text("yes") if audit.balanced else Text("NO", "red")
        if missing := audit.missing.get(name):
            balanced.append(f", {missing} missing")
        shown.add_row(name, *(str(getattr(ledger, term)) for term in TERMS), discarded or "0", balanced)
    return shown
