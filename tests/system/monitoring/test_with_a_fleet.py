"""The quickstart's fleet and an operator in a real Prometheus: every panel and every rule finds its series."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from examples.quickstart.agents import Agent
from examples.quickstart.record import Record
from monitoring.alerts import ALERTS
from monitoring.dashboard import dashboard
from tests.commands import invoke
from tests.local_fleets import Up, running
from tests.paths import ROOT
from tests.system.monitoring import operators, prometheus
from tests.system.monitoring.prometheus import Prometheus
from tests.waiting import until

from rolloutfleet import monitoring
from rolloutfleet.fleet import Fleet, Session

QUICKSTART: Final = (ROOT / "examples" / "quickstart" / "fleet.yaml").read_text()
SOON_STALE: Final = {"stale_after": 0.2, "cleanup_interval": 0.2}
"""So that the clean-up has something to do."""
AGENTS: Final = (1, 2, 8)
"""Of the quickstart's: one that streams, one that drops its reasoning, and one that changes its history."""


@dataclass(frozen=True)
class Watched:
    up: Up
    folder: Path
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    home = tmp_path_factory.mktemp("watched")
    folder = home / "prometheus"
    with running(home, QUICKSTART) as up, operators.serving() as operator:
        up.book()
        written = invoke("prometheus", str(folder), "--interval", "1s", "--state-dir", str(up.state))
        assert written.returncode == 0, written.stderr
        config = folder / monitoring.CONFIG
        config.write_text(config.read_text() + job_of_the_operator(operator))
        with prometheus.running(config, home) as server:
            server.comes("up == 1", count=3)
            use(up, server)
            yield Watched(up, folder, server)


def job_of_the_operator(address: str) -> str:
    """As the chart's PodMonitor has it scraped."""
    labels = {"namespace": "rolloutfleet-system", "pod": "operator-0"}
    job = {
        "job_name": "operator",
        "honor_labels": True,
        "static_configs": [{"targets": [address], "labels": labels}],
    }
    return yaml.safe_dump([job])


def use(up: Up, server: Prometheus) -> None:
    """What happens in a quickstart; then the engines fail a call, and a session is left alone."""
    with Fleet.from_file(up.state) as fleet:
        sessions = fleet.start_group(len(AGENTS), "trip").sessions
        agents = [
            Agent(
                number=number,
                session_id=session.session_id,
                base_url=session.base_url,
                api_key=session.api_key,
                record=Record(),
                progress=lambda: None,
            )
            for number, session in zip(AGENTS, sessions, strict=True)
        ]
        asyncio.run(all_of(agents))
        forked = fleet.start_session("forked")
        fork(forked)
        # What is counted under a label for the first time shows no increase yet.
        server.comes(f'rolloutfleet_follow_ups_total{{instance="{urlsplit(agents[0].base_url).netloc}"}}')
        server.comes(f'rolloutfleet_branches_total{{instance="{urlsplit(forked.base_url).netloc}"}}')
        asyncio.run(agents[0].run())
        fork(forked)
        for session in sessions:
            session.reward(1.0)
        refused = fleet.start_session("refused")
        for engine in fleet.engines:
            fault = {"kind": "error_500"}
            httpx.post(f"{engine.url}/faults", headers=engine.headers, json=fault).raise_for_status()
        failed = httpx.post(
            f"{refused.base_url}/chat/completions",
            headers={"authorization": f"Bearer {refused.api_key}"},
            json={"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
        )
        assert failed.status_code == 502
    for file in (up.state / "settings").glob("proxy-*.json"):
        told = json.loads(file.read_text())
        file.write_text(json.dumps({**told, "sessions": {**told["sessions"], **SOON_STALE}}))


def fork(session: Session) -> None:
    """Have a turn's answer sent back as another one."""
    asked = [{"role": "user", "content": "hello"}]
    changed = [*asked, {"role": "assistant", "content": "changed"}, {"role": "user", "content": "and now?"}]
    for messages in (asked, changed):
        httpx.post(
            f"{session.base_url}/chat/completions",
            headers={"authorization": f"Bearer {session.api_key}"},
            json={"messages": messages, "max_tokens": 5},
        ).raise_for_status()


async def all_of(agents: list[Agent]) -> None:
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent.run())


QUERIES: Final = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in dashboard()["panels"]
    for target in panel.get("targets", ())
}
FIGURES: Final = {
    f"{alert.name} {number}": condition.figure
    for alert in ALERTS
    for number, condition in enumerate(alert.conditions, start=1)
}


def chosen(expression: str, namespace: str = ".*", fleet: str = ".*") -> str:
    """What Grafana makes of a panel's expression."""
    variables = {"$namespace": namespace, "$fleet": fleet, "$__rate_interval": "5m"}
    for name, value in variables.items():
        expression = expression.replace(name, value)
    return expression


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_of_the_dashboard_finds_its_series(watched: Watched, name: str) -> None:
    watched.prometheus.comes(chosen(QUERIES[name]))


@pytest.mark.parametrize("name", FIGURES)
def test_there_is_always_the_figure_that_a_rule_compares(watched: Watched, name: str) -> None:
    watched.prometheus.comes(FIGURES[name])


def test_the_rules_are_loaded_and_can_be_evaluated(watched: Watched) -> None:
    def evaluated() -> list[dict[str, Any]]:
        groups = watched.prometheus.get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["health"] != "unknown"]

    until(lambda: len(evaluated()) >= len(ALERTS))
    assert {(rule["name"], rule["health"]) for rule in evaluated()} == {(alert.name, "ok") for alert in ALERTS}


def test_the_variables_of_the_dashboard_tell_fleets_apart(watched: Watched) -> None:
    query = QUERIES["Open sessions A"]
    assert watched.prometheus.series(chosen(query, fleet="quickstart"))
    assert not watched.prometheus.series(chosen(query, fleet="another"))
    labels = {label for each in dashboard()["templating"]["list"][1:] for label in [each["name"]]}
    assert labels <= set(watched.prometheus.series("rolloutfleet_operator_proxy_rss_bytes")[0]["metric"])


def test_run_again_the_command_keeps_the_configuration_and_renews_the_rest(watched: Watched) -> None:
    config, targets = (watched.folder / name for name in (monitoring.CONFIG, monitoring.TARGETS))
    before, told = config.read_text(), targets.read_text()
    assert [each["labels"]["pod"] for each in json.loads(told)] == ["proxy-0", "proxy-1"]
    targets.write_text("[]")
    again = invoke("prometheus", str(watched.folder), "--state-dir", str(watched.up.state))
    assert (again.returncode, config.read_text(), targets.read_text()) == (0, before, told)
    assert "prometheus.yml," not in again.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--interval", "often"), "--interval: 'often' is not a valid duration"),
        (("--interval", "1ms"), "--interval: 1ms is not between 100ms and 1m"),
    ],
)
def test_a_wrong_interval_is_refused_and_nothing_is_written(
    watched: Watched, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = invoke("prometheus", str(tmp_path / "new"), *words, "--state-dir", str(watched.up.state))
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cant_be_written_is_named(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = invoke("prometheus", str(tmp_path / "file" / "x"), "--state-dir", str(watched.up.state))
    assert done.returncode == 1 and f"{tmp_path / 'file'}" in done.stderr
