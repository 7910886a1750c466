"""Files for a Prometheus and a Grafana that watch a fleet: what to scrape, alert rules, a dashboard.

Rules and dashboard are generated in the repository, from the metrics' own names (`make chart`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

CONFIG: Final = "prometheus.yml"
TARGETS: Final = "rolloutfleet-targets.json"
RULES: Final = "rolloutfleet-rules.yaml"
DASHBOARD: Final = "rolloutfleet-dashboard.json"
_HERE: Final = Path(__file__).parent


def generated() -> dict[str, str]:
    """Rules and dashboard, by the names of their files."""
    return {name: (_HERE / name).read_text(encoding="utf-8") for name in (RULES, DASHBOARD)}


def config(interval: str) -> str:
    """What Prometheus is started with; it follows the targets by itself when their file is written again."""
    return f"""\
# Written by `rolloutfleet prometheus`, which keeps this file from then on: change what you like.
global:
  scrape_interval: {interval}
  evaluation_interval: {interval}
rule_files: [{RULES}]
scrape_configs:
- job_name: rolloutfleet
  file_sd_configs:
  - files: [{TARGETS}]
    refresh_interval: 1m
"""


def targets(name: str, proxies: Mapping[int, str]) -> str:
    """The addresses of a fleet's proxies, with the labels that rules and dashboard tell them apart by."""
    return json.dumps([_target(name, ordinal, url) for ordinal, url in sorted(proxies.items())], indent=1) + "\n"


def _target(name: str, ordinal: int, url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    labels = {
        "fleet": name,
        "pod": f"proxy-{ordinal}",
        "__scheme__": parts.scheme,
        "__metrics_path__": f"{parts.path.rstrip('/')}/metrics",
    }
    return {"targets": [f"{host}:{port}"], "labels": labels}
