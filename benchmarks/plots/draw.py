"""Draws what the records say: one picture for each that is there.

    python -m benchmarks.plots.draw [FOLDER]

A bench draws when it ends; this is for records that came from elsewhere.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.plots.svg import Bar, Line, bars, lines
from benchmarks.rigs.figures import readable

MB: Final = 1e6
RESULTS: Final = Path(__file__).parents[1] / "results"

Records = Mapping[str, Any]
"""Records by the name of their rig."""


def draw(folder: Path) -> list[Path]:
    """Write `<name>.svg` for every picture that the folder's records are enough for."""
    records = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    drawn = []
    for name, picture in PICTURES.items():
        text = picture(records)
        if text is not None:
            (folder / f"{name}.svg").write_text(text, encoding="utf-8")
            drawn.append(folder / f"{name}.svg")
    return drawn


def _median(record: Any, name: str) -> float | None:
    figure = record["figures"].get(name)
    return None if figure is None else float(figure["median"])


def cpu_per_request(records: Records) -> str | None:
    """The gateways, the proxy, and the peers where they were measured."""
    if "capture_vs_gateway" not in records:
        return None
    peers = records.get("capture_vs_peers", {"figures": {}})
    found = [
        ("sglang-router 0.3.2 alone", _median(records["capture_vs_gateway"], "gateway_cpu_per_request"), 4),
        ("smg alone", _median(records["capture_vs_gateway"], "smg_cpu_per_request"), 4),
        ("proxy, all on", _median(records["capture_vs_gateway"], "proxy_cpu_per_request"), 0),
        ("FastAPI + httpx, R1's shape", _median(peers, "fastapi_httpx_cpu_per_request"), 1),
        ("LiteLLM's proxy", _median(peers, "litellm_cpu_per_request"), 1),
    ]
    rows = [Bar(label, value, f"{readable(value)} µs", colour) for label, value, colour in found if value is not None]
    return bars("CPU a request (24 KiB sent, 30 KB back), the engine answering at once", rows)


def r1(records: Records) -> str | None:
    """Requests a second over the calls in flight, ours, R1's shape and what R1 printed."""
    if "r1" not in records:
        return None
    points = records["r1"]["runs"][0]["points"]
    levels = sorted({point["in_flight"] for point in points})
    drawn = [
        Line("bound: in flight / 0.5 s", [(n, n / 0.5) for n in levels], dashed=True),
        Line("gateway alone", _rates(points, "gateway", 1)),
    ]
    servers = sorted({point["servers"] for point in points if point["who"] == "proxy"})
    drawn += [Line(f"ours, {n}", _rates(points, "proxy", n)) for n in servers]
    drawn += [Line(f"R1's shape, {n}", _rates(points, "shape", n)) for n in (servers[0], servers[-1])]
    printed = [(point["in_flight"], point["printed_rate"]) for point in points if point["printed_rate"] is not None]
    if printed:
        drawn.append(Line("printed by R1", sorted(set(map(tuple, printed))), dots_only=True))
    return lines(
        "R1's rig: an engine of 0.5 s, sessions of 6 turns",
        drawn,
        across="calls in flight",
        upright="requests a second",
        logarithmic=True,
    )


def _rates(points: list[dict[str, Any]], who: str, servers: int) -> list[tuple[float, float]]:
    return [(p["in_flight"], p["rate"]) for p in points if (p["who"], p["servers"]) == (who, servers)]


PRINTED_BY_R2: Final = (("printed by R2, before", 1053, 990), ("printed by R2, after", 275, 155))
CHURNS: Final = {
    "churn": "4 sessions of 45 turns",
    "churn_held": "the same, bodies held",
    "churn_larger": "more sessions, 8 at once",
    "churn_without_trim": "… without malloc_trim",
    "churn_without_mmap_threshold": "… without mmap threshold",
    "churn_without_arenas": "… without fewer arenas",
    "churn_without_all_three": "… without all three",
}


def churn(records: Records) -> str | None:
    """Memory at the most and after, with what R2 printed."""
    record = records.get("r2") or records.get("rss_churn")
    if record is None:
        return None
    rows = []
    for label, peak, rest in PRINTED_BY_R2:
        rows += [Bar(f"{label}: at most", peak, f"{peak} MB", 4), Bar("after", rest, f"{rest} MB", 4)]
    for name, label in CHURNS.items():
        most, after = _median(record, f"rss_peak_{name}_mb"), _median(record, f"rss_rest_{name}_mb")
        if most is not None and after is not None:
            rows += [Bar(f"{label}: at most", most, f"{most:.0f} MB"), Bar("after", after, f"{after:.0f} MB", 2)]
    return bars("R2's rig: resident memory in churn", rows, goals=[("155", 155), ("275", 275)])


def turn_growth(records: Records) -> str | None:
    """What each turn of a long session stores."""
    record = records.get("turn_growth")
    if record is None:
        return None
    by_turn = {int(number): seen["bytes"] for number, seen in record["runs"][0]["by_turn"].items()}
    line = Line("bytes stored", sorted(by_turn.items()))
    return lines("A session of 200 turns", [line], across="turn", upright="bytes that the turn stores")


def soak(records: Records) -> str | None:
    """Resident memory over the time of a soak."""
    if "soak" not in records:
        return None
    samples = [(at / 60, size / MB) for at, size in records["soak"]["runs"][0]["samples"]]
    line = Line("proxy's process tree", samples)
    return lines("Sessions come and go", [line], across="minutes", upright="resident memory, MB")


PICTURES: Final[dict[str, Callable[[Records], str | None]]] = {
    "cpu_per_request": cpu_per_request,
    "r1": r1,
    "churn": churn,
    "turn_growth": turn_growth,
    "soak": soak,
}


if __name__ == "__main__":
    for file in draw(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS):
        print(file)
