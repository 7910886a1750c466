"""The fleet and the agent that a trainer's configuration names."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.fleet.rollout_proxy import Proxy, serving

from rolloutfleet.fleet import BadArgument, Command, TooManyFailures, Unreachable
from rolloutfleet.formats import episodes as module
from rolloutfleet.formats.episodes import Episodes, agent_of

HERE = __name__


def twice(session: Any, task: int) -> int:
    return 2 * task


async def nothing(session: Any, task: Any) -> None: ...


async def raises(session: Any, task: Any) -> None:
    raise ImportError("no module named sandbox")


@pytest.fixture(autouse=True)
def no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FAILURES", [])


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "admin.key"
    file.write_text("of the tests\n")
    monkeypatch.setenv("ROLLOUTFLEET_ADMIN_KEY_FILE", str(file))
    monkeypatch.delenv("ROLLOUTFLEET_URL", raising=False)
    return file


def test_a_fleet_is_named_by_configuration_before_environment(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTFLEET_URL", "http://environment")
    assert Episodes(agent="a:b").where().urls == ("http://environment",)
    assert Episodes(agent="a:b", fleet="http://configured").where().urls == ("http://configured",)
    book = key.parent / "fleet.json"
    book.write_text(f'{{"proxies": [{{"url": "http://proxy"}}], "admin_key_file": "{key}"}}')
    assert Episodes(agent="a:b", fleet=str(key.parent)).where().urls == ("http://proxy",)
    monkeypatch.setenv("ROLLOUTFLEET_FLEET_FILE", str(book))
    monkeypatch.delenv("ROLLOUTFLEET_URL")
    assert Episodes(agent="a:b").where().urls == ("http://proxy",)


def test_a_fleet_that_is_named_nowhere_is_an_error(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(key.parent)
    with pytest.raises(BadArgument, match="path: no fleet runs from"):
        Episodes(agent="a:b").where()


def test_an_agent_is_a_function_of_a_module_or_a_command() -> None:
    assert agent_of(f"{HERE}:twice") is twice
    assert agent_of("my-agent --quiet '{task}'", for_="codex") == Command(
        ["my-agent", "--quiet", "{task}"], for_="codex"
    )
    for name in (f"{HERE}:missing", "no.such.module:agent"):
        with pytest.raises(BadArgument, match="can't be imported"):
            agent_of(name)


async def test_an_outage_is_an_error_and_no_rollout_without_a_turn(key: Path) -> None:
    proxy = Proxy()
    async with serving(proxy):
        episodes = Episodes(agent=f"{HERE}:nothing", fleet=proxy.url)
        assert len(await episodes.run("task")) == 1
        proxy.refuses = ("POST /export",)
        with pytest.raises(Unreachable, match="what group g0-2 left could not be had"):
            await episodes.run("task")


async def test_rollouts_of_a_process_are_counted_together_until_too_many_have_failed(key: Path) -> None:
    async with serving(proxy := Proxy()):
        for _ in range(9):
            await Episodes(agent=f"{HERE}:raises", fleet=proxy.url).run("task")
        with pytest.raises(TooManyFailures, match="10 of the last 10 episodes failed"):
            await Episodes(agent=f"{HERE}:raises", fleet=proxy.url).run("task")
        for _ in range(11):
            await Episodes(agent=f"{HERE}:raises", fleet=proxy.url, max_failures=1.0).run("task")


async def test_an_evaluation_has_rows_and_is_discarded(key: Path) -> None:
    async with serving(proxy := Proxy()):
        assert len(await Episodes(agent=f"{HERE}:nothing", fleet=proxy.url, evaluation=True).run("task")) == 1
        assert proxy.sessions == {"s0-1-0": "deleted"}
        await Episodes(agent=f"{HERE}:nothing", fleet=proxy.url).run("task")
        assert proxy.sessions["s0-2-0"] == "closed"
