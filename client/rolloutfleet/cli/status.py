"""`rolloutfleet status`: how a fleet is."""

from collections import Counter
from typing import Any, Final

from rolloutfleet.cli.api import NativeApi
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_fleet_options
from rolloutfleet.cli.show import console, print_json, size, table, text

MOST_BRANCHES: Final = 0.05
"""Share of follow-up turns that may start a branch before that is worth a warning."""

TERMS = ("created", "imported", "live", "leased", "acknowledged", "dumped")


@takes_fleet_options
def status(
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """Show each proxy's figures, and whether every turn and session is accounted for.

    The last table is the audit: created + imported = live + leased + acknowledged + dumped + discarded. A warning
    stands below it where more than 5 % of the turns that follow an answer start a branch.
    """
    with NativeApi(options.find()) as api:
        proxies = api.proxies()
        stats = api.from_each("/stats")
        audit = summed(api.from_each("/audit"))
    if as_json:
        print_json({"proxies": proxies, "stats": stats, "audit": audit})
        return
    out = console()
    out.print(_proxies(proxies, {each["ordinal"]: each for each in stats}))
    out.print()
    out.print(_audit(audit))
    warning = branching(stats)
    if warning is not None:
        out.print()
        out.print(f"[yellow]{warning}[/]")


def branching(stats: list[dict[str, Any]]) -> str | None:
    """What is to be said of follow-up turns that start a branch; None where they are few."""
    turns: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for each in stats:
        turns.update(each.get("follow_ups", {}))
        reasons.update(each.get("branches", {}))
    branched, followed = turns["branch"], turns.total()
    if branched <= MOST_BRANCHES * followed:
        return None
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3))
    return (
        f"Warning: {branched} of {followed} follow-up turns ({branched / followed:.0%}) start a branch: their history "
        f"is rendered and trained again. What differed most: {why or 'nothing'}. "
        "`rolloutfleet turns SESSION` says why each one did."
    )


def summed(audits: list[dict[str, Any]]) -> dict[str, Any]:
    """The audits of several proxies as one: balanced where each is."""
    return {
        "balanced": all(audit["balanced"] for audit in audits),
        "turns": _summed([audit["turns"] for audit in audits]),
        "sessions": _summed([audit["sessions"] for audit in audits]),
        "ordinals": sorted(ordinal for audit in audits for ordinal in audit["ordinals"]),
    }


def _summed(ledgers: list[dict[str, Any]]) -> dict[str, Any]:
    discarded: Counter[str] = Counter()
    for ledger in ledgers:
        discarded.update(ledger["discarded"])
    return {**{term: sum(ledger[term] for ledger in ledgers) for term in TERMS}, "discarded": dict(discarded)}


def _proxies(proxies: list[dict[str, Any]], stats: dict[int, dict[str, Any]]) -> Any:
    shown = table(
        "proxy",
        "address",
        "state",
        "open",
        "ended",
        "in flight",
        "memory",
        "version",
        "paused",
        numbers=("open", "ended", "in flight", "memory", "version"),
    )
    for proxy in proxies:
        figures = stats.get(proxy["ordinal"])
        if figures is None:
            shown.add_row(str(proxy["ordinal"]), proxy["url"], text(proxy.get("state")))
            continue
        shown.add_row(
            str(proxy["ordinal"]),
            proxy["url"],
            text(proxy.get("state")),
            str(figures["sessions"]["open"]),
            str(figures["sessions"]["ended"]),
            str(figures["in_flight"]),
            size(figures["rss_bytes"]),
            str(figures["version"]),
            "yes" if figures["paused"] else "no",
        )
    return shown


def _audit(audit: dict[str, Any]) -> Any:
    columns = ("", *TERMS, "discarded", "balanced")
    shown = table(*columns, numbers=columns[1:])
    for name in ("turns", "sessions"):
        sums = audit[name]
        discarded = ", ".join(f"{reason} {count}" for reason, count in sums["discarded"].items() if count)
        shown.add_row(
            name,
            *(str(sums[term]) for term in TERMS),
            discarded or "0",
            "yes" if audit["balanced"] else "[red]NO[/]",
        )
    return shown
