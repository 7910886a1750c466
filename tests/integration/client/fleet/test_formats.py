"""Rollouts that slime and verl ask for, one by one: of a real fleet, leased until the trainer acknowledges them."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fleets import Fleet as Running
from tests.integration.client.fleet.agents import say, talk
from tests.integration.client.fleet.conftest import key_file
from tests.unit.client.formats.drawn import same
from tests.unit.client.formats.standins import install_verl
from tests.unit.client.formats.test_slime import ASKED, Sample

from rolloutfleet.fleet import Fleet
from rolloutfleet.formats import by_session, rows_of, slime, trl, verl
from rolloutfleet.formats.episodes import LEASES, Episodes, leases_of
from rolloutfleet.formats.rollouts import trained_tokens

HERE = __name__
COMMAND = """
import json, os, sys, urllib.request
task = json.loads(os.environ["ROLLOUTFLEET_TASK"])
body = {"model": "simulated", "max_tokens": 8, "messages": [{"role": "user", "content": task["prompt"]}]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), {
    "content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
urllib.request.urlopen(asked).read()
sys.exit(task.get("status", 0))
"""


async def solved(session: Any, task: Any) -> float:
    await talk(session, turns=2)
    return 0.5


def says_nothing(session: Any, task: Any) -> None:
    """In a thread, without a call."""


async def crashes(session: Any, task: Any) -> None:
    await talk(session)
    raise RuntimeError("of the agent")


@pytest.fixture
def configured(pair: Running, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("ROLLOUTFLEET_ADMIN_KEY_FILE", str(key_file(pair)))
    monkeypatch.setenv("ROLLOUTFLEET_URL", pair.proxies[1].url)
    return {"agent": f"{HERE}:solved"}


async def test_slime_generates_samples_acknowledges_them_and_discards_evaluations(
    configured: dict[str, Any], fleet: Fleet
) -> None:
    args, asked = SimpleNamespace(rolloutfleet=configured), {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 5}
    before = fleet.audit().turns
    made = await slime.generate(args, ASKED, asked)
    again = await slime.generate(args, ASKED, asked)
    # Its answers are cut at their token limit.
    assert [(each.reward, each.status, each.rollout_id) for each in made] == [(0.5, Sample.Status.TRUNCATED, 17)]
    assert ASKED.metadata == {"level": 1}
    assert fleet.audit().turns.leased == before.leased + 4
    await slime.acknowledge(args, [*made, *made, *again])
    after = fleet.audit().turns
    assert (after.leased, after.acknowledged) == (before.leased, before.acknowledged + 4)
    evaluated = await slime.generate(args, ASKED, asked, evaluation=True)
    assert (evaluated[0].reward, evaluated[0].metadata[LEASES]) == (0.5, [])
    turns = fleet.audit().turns
    assert (turns.leased, turns.acknowledged) == (after.leased, after.acknowledged)
    assert turns.discarded["deleted"] == after.discarded.get("deleted", 0) + 2


async def test_an_episode_has_the_rows_of_the_fleet_and_the_trainers_sampling(configured: dict[str, Any]) -> None:
    episodes = Episodes(**configured)
    (trajectory,) = await episodes.run({"id": "sums"}, sampling={"temperature": 0.7, "top_k": 5, "logprobs": True})
    assert (trajectory.task_id, trajectory.outcome, trajectory.reward) == ("sums", "truncated", 0.5)
    for turn in trajectory.turns:
        assert turn.sampling is not None
        assert (turn.sampling.temperature, turn.sampling.top_k) == (0.7, 5)
    (sample,) = slime.samples([trajectory], ASKED)
    (row,) = rows_of([trajectory])
    assert same(sample.tokens, row, "input_ids") and sum(sample.loss_mask) == trained_tokens(row)
    await episodes.acknowledge(leases_of([trajectory]))


async def test_a_failed_agent_is_a_rollout_without_a_reward(configured: dict[str, Any]) -> None:
    args = SimpleNamespace(rolloutfleet=configured | {"agent": f"{HERE}:crashes"})
    (made,) = await slime.generate(args, ASKED, {})
    assert (made.reward, made.status, made.loss_mask) == (None, Sample.Status.FAILED, [0])
    assert len(made.metadata[LEASES]) == 1
    await slime.acknowledge(args, [made])
    silent = SimpleNamespace(rolloutfleet=configured | {"agent": f"{HERE}:says_nothing"})
    (made,) = await slime.generate(silent, ASKED, {})
    assert (made.reward, made.metadata[LEASES]) == (None, [])


def test_rollouts_of_which_a_part_was_acknowledged_have_the_rest_to_the_bit(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_verl(monkeypatch)
    with fleet.start_session() as session:
        messages, _ = say(session, [{"role": "user", "content": "Hello"}])
        session.reward(0.25, close=True)
        say(session, [*messages, {"role": "user", "content": "Again"}])
        session.reward(1.0, close=True)
    with fleet.export(session_ids=[session]) as export:
        ((first, second),) = by_session(export)
        export.acknowledge(first)
        export.release(second)
    with fleet.export(session_ids=[session]) as export:
        rest = list(export)
    (row,) = rows_of(rest)
    assert 0 < trained_tokens(row) < row.tokens and row.reward == 1.0
    (sample,), columns = slime.samples(rest, ASKED), trl.rollout([rest])
    (output,) = verl.outputs(rest, prompt_length=500, response_length=500)
    assert same(sample.tokens, row, "input_ids") and sample.reward == row.reward
    assert same([*columns["prompt_ids"][0], *columns["completion_ids"][0]], row, "input_ids")
    assert same([*output.prompt_ids, *output.response_ids], row, "input_ids")
    assert sum(columns["env_mask"][0]) == sum(output.response_mask) == sum(sample.loss_mask) == trained_tokens(row)


async def test_an_agent_may_be_a_command(configured: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(COMMAND)
    episodes = Episodes(agent=f"{sys.executable} {script}")
    (good,) = await episodes.run({"prompt": "2 + 2?"})
    (bad,) = await episodes.run({"prompt": "2 + 2?", "status": 3})
    assert (good.outcome, good.reward, len(good.turns)) == ("truncated", None, 1)
    assert (bad.outcome, bad.outcome_reason) == ("failed", f"AgentError: {sys.executable} ended with exit status 3")
    await episodes.acknowledge(leases_of([good, bad]))


async def test_verls_agent_loop_gives_outputs_that_can_be_acknowledged(
    configured: dict[str, Any], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_verl(monkeypatch)
    room = SimpleNamespace(prompt_length=500, response_length=500)
    config = SimpleNamespace(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=room)))
    asked = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    before = fleet.audit().turns
    (several,) = await verl.FleetAgentLoop(config, **configured, tokenizer=None).run(asked, raw_prompt=["2 + 2?"])
    one = await verl.FleetAgentLoop(config, **configured, several=False).run(asked, raw_prompt=["2 + 2?"])
    assert [each.reward_score for each in (several, one)] == [0.5, 0.5]
    leases = [*several.extra_fields[LEASES], *one.extra_fields[LEASES]]
    await verl.acknowledge([*leases, *leases])
    assert fleet.audit().turns.acknowledged == before.acknowledged + 4
    crashing = configured | {"agent": f"{HERE}:crashes"}
    assert await verl.FleetAgentLoop(config, **crashing).run(asked) == []
    assert fleet.audit().turns.acknowledged == before.acknowledged + 5
    (evaluated,) = await verl.FleetAgentLoop(config, **configured, evaluation=True).run(asked, raw_prompt=["2 + 2?"])
    assert (evaluated.reward_score, evaluated.extra_fields[LEASES]) == (0.5, [])
    after = fleet.audit().turns
    assert (after.leased, after.acknowledged) == (before.leased, before.acknowledged + 5)
