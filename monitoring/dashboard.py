"""The dashboard as Grafana reads it: panels in a grid, the data source and what is looked at as variables."""

from collections.abc import Iterator
from typing import Any, Final

from monitoring.panels import ROWS, Panel
from monitoring.promql import PROXY, of

UID: Final = "rolloutfleet"
SCHEMA: Final = 38
"""Of Grafana 10.1 and newer."""
COLUMNS: Final = 24
SIZES: Final = {"stat": (4, 4), "timeseries": (8, 8)}
"""Width and height in the grid."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    return {
        "uid": UID,
        "title": "RolloutFleet",
        "description": "Fleets of capture proxies, and their operator.",
        "tags": ["rolloutfleet"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), _variable("namespace"), _variable("fleet")]},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(label: str) -> dict[str, Any]:
    """The values of a label. A local fleet has no namespace: `.*` takes what lacks the label, too."""
    query = f"label_values({of(PROXY.sessions_open)}, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
        "hide": 0,
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Each row's title, and below it its panels from left to right, in as many lines as they take."""
    number = y = 0
    for row in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": _place(0, y, COLUMNS, 1),
            "panels": [],
        }
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            width, tall = SIZES[panel.kind]
            if x + width > COLUMNS:
                x, y = 0, y + height
            number, height = number + 1, tall
            yield _panel(panel, number, _place(x, y, width, tall))
            x += width
        y += height


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    looks = _stat() if panel.kind == "stat" else _series(panel)
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "range": True,
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": looks["custom"]}, "overrides": []},
        "options": looks["options"],
    }


def _stat() -> dict[str, Any]:
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "none",
        "graphMode": "area",
        "textMode": "auto",
    }
    return {"custom": {}, "options": options}


def _series(panel: Panel) -> dict[str, Any]:
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 20 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return {"custom": custom, "options": options}
