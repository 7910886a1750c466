"""The rules are what Prometheus reads."""

import subprocess

from monitoring.alerts import ALERTS
from monitoring.files import CHART, RULES
from tests.system.monitoring.prometheus import program


def test_prometheus_takes_the_rules() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "rules", str(CHART / "rules" / RULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout
