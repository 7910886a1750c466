"""Weight updates while agents talk: two real proxies, the real gateway, two engines, and the real SDK."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.waiting import PATIENCE, comes_true

from rolloutfleet.errors import INVALID_REQUEST, PAUSE_TIMEOUT
from rolloutfleet.wire import LAST_EPOCH, LAST_RUN

Json = Any

AGENTS = 8
ROUNDS = 8
"""Updates at the least, two in each mode."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("pair")
    with running_fleet(folder, proxies=2, engines=2, engine_options=("--token-latency", "0.01")) as running:
        yield running


@dataclass
class Agents:
    """Talk until told to stop, each through the other proxy than its session's as often as through its own."""

    fleet: Fleet
    sessions: list[AgentSession] = field(default_factory=list)
    answers: int = 0
    stopped: bool = False

    async def talk(self, number: int) -> None:
        session = self.fleet.proxies[number % 2].start_session()
        self.sessions.append(session)
        wrong = self.fleet.proxies[(number // 2) % 2].url
        base_url = f"{wrong}/sessions/{session.session_id}/v1"
        async with openai.AsyncOpenAI(
            base_url=base_url, api_key=session.api_key, max_retries=0, timeout=PATIENCE
        ) as client:
            messages: list[Any] = [{"role": "user", "content": f"Tell me about {number}."}]
            while not self.stopped:
                said = await self._ask(client, messages, stream=number % 4 < 2)
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
                self.answers += 1
                if len(messages) > 8:
                    del messages[1:]

    async def _ask(self, client: openai.AsyncOpenAI, messages: list[Any], *, stream: bool) -> str:
        options: dict[str, Any] = {"model": "simulated", "messages": messages, "max_tokens": 60}
        if not stream:
            reply = await client.chat.completions.create(**options)
            return str(reply.choices[0].message.content)
        events = await client.chat.completions.create(stream=True, **options)
        return "".join([event.choices[0].delta.content or "" async for event in events])

    def turns(self) -> list[Json]:
        return [turn for session in self.sessions for turn in session.turns()]

    def caches_over_updates(self) -> set[bool]:
        """Of turns with tokens of several versions: whether some were made from what an older version had cached."""
        return {turn["mixed_cache"] for turn in self.turns() if len(set(turn["versions"])) > 1}

    async def more(self, answers: int) -> None:
        """Until so many more turns are made."""
        goal = self.answers + answers
        await comes_true(lambda: self.answers >= goal)


@asynccontextmanager
async def talking(fleet: Fleet) -> AsyncIterator[Agents]:
    agents = Agents(fleet)
    tasks = [asyncio.create_task(agents.talk(number)) for number in range(AGENTS)]
    try:
        yield agents
    finally:
        agents.stopped = True
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results if result is not None] == []


class Trainer:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        key = fleet.proxy.key
        self._client = httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE)

    async def __aenter__(self) -> "Trainer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, proxy: int, method: str, path: str, body: Json = None) -> Json:
        reply = await self._client.request(method, self._fleet.proxies[proxy].url + path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def running(self) -> int:
        """Requests that an engine works for."""
        loads = [(await self._client.get(f"{engine.url}/v1/loads")).json() for engine in self._fleet.engines]
        return sum(load["num_running_reqs"] for answer in loads for load in answer["loads"])

    async def load_weights(self, version: int) -> None:
        for engine in self._fleet.engines:
            update = {"model_path": "none", "weight_version": str(version), "flush_cache": False}
            reply = await self._client.post(f"{engine.url}/update_weights_from_disk", json=update)
            assert reply.status_code == 200, reply.text


async def test_every_token_has_its_version_through_updates_in_every_mode(pair: Fleet) -> None:
    async with Trainer(pair) as trainer, talking(pair) as agents:
        await trainer.ask(0, "PUT", "/version?scope=fleet", {"version": 1})
        for version, mode in enumerate(cycle(("abort", "wait", "retract", "in_place")), 2):
            await agents.more(AGENTS)
            # A pause may find that nobody writes.
            if version > ROUNDS and agents.caches_over_updates() == {True, False}:
                break
            leader = version % 2
            paused = await trainer.ask(leader, "POST", "/pause?scope=fleet", {"mode": mode})
            assert (paused["paused"], paused["ordinals"], paused["failed"]) == (True, [0, 1], [])
            if mode in ("abort", "wait"):
                assert await trainer.running() == 0
            answers = agents.answers
            await trainer.load_weights(version)
            told = await trainer.ask(1 - leader, "PUT", "/version?scope=fleet", {"version": version})
            assert (told["version"], told["failed"]) == (version, [])
            assert agents.answers <= answers + AGENTS, "no turn begins while paused"
            gone_on = await trainer.ask(leader, "POST", "/continue?scope=fleet", {"epoch": paused["epoch"]})
            assert (gone_on["paused"], gone_on["failed"]) == (False, [])
    turns = agents.turns()
    assert len(turns) == agents.answers
    assert_versions_are_the_engines_own(pair, turns)
    for proxy in pair.proxies:
        assert proxy.audit()["balanced"]


def assert_versions_are_the_engines_own(fleet: Fleet, turns: list[Json]) -> None:
    """Joined over a turn's rounds, ids, log-probabilities and versions are what the engines noted."""
    rounds: defaultdict[str, list[tuple[int, Json]]] = defaultdict(list)
    for engine in fleet.engines:
        for note in engine.log():
            turn_id, _, number = note["rid"].removesuffix(".").partition(".")
            rounds[turn_id].append((int(number), note))
    for turn in turns:
        notes = [note for _, note in sorted(rounds[turn["turn_id"]], key=lambda one: one[0])]
        assert turn["output_ids"] == [token for note in notes for token in note["output_ids"]]
        assert turn["logprobs"] == [logprob for note in notes for logprob in note["output_logprobs"]]
        assert turn["versions"] == [
            int(version) for note in notes for version, start, end in note["weight_versions"] for _ in range(start, end)
        ]


async def test_a_call_is_held_while_paused_and_a_stopped_proxy_takes_part_when_it_is_back(pair: Fleet) -> None:
    async with Trainer(pair) as trainer:
        pair.proxies[1].kill()
        paused = await trainer.ask(0, "POST", "/pause?scope=fleet", {"mode": "abort"})
        assert paused["ordinals"] == [0]
        assert [(one["ordinal"], one["error"]["code"]) for one in paused["failed"]] == [(1, "owner_unreachable")]
        pair.proxies[1].start()
        session = pair.proxies[0].start_session()
        sessions = [session, pair.proxies[1].start_session()]
        calls = [asyncio.create_task(_hello(one)) for one in sessions]
        done, _ = await asyncio.wait(calls, timeout=2)
        assert not done
        shown = await trainer.ask(1, "GET", "/version?scope=fleet")
        assert {(one["paused"], one["epoch"]) for one in shown["proxies"]} == {(True, paused["epoch"])}
        await trainer.ask(1, "POST", "/continue?scope=fleet", {"epoch": paused["epoch"]})
        assert all(await asyncio.gather(*calls))


async def _hello(session: AgentSession) -> str:
    async with session.async_client() as client:
        reply = await client.chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": "Hello"}], max_tokens=20
        )
    return str(reply.choices[0].finish_reason)


def test_an_epoch_beyond_the_last_is_refused_before_it_is_kept(pair: Fleet) -> None:
    beyond = LAST_EPOCH + 1
    with pair.proxies[0].admin() as first, pair.proxies[1].admin() as second:
        before = [each.get("/version").json()["epoch"] for each in (first, second)]
        state = first.get("/peers/weights").json()
        for path, body in (
            ("/pause", {"epoch": beyond}),
            ("/pause?scope=fleet", {"epoch": beyond}),
            ("/continue", {"epoch": beyond}),
            ("/continue?scope=fleet", {"epoch": beyond}),
            ("/peers/weights/join", {**state, "epoch": beyond}),
            ("/peers/weights/settled", {"epoch": beyond, "timeout": 1.0}),
        ):
            answer = first.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, INVALID_REQUEST), (path, answer.text)
        assert first.put("/version?scope=fleet", json={"version": 99, "epoch": beyond}).status_code == 400
        assert [each.get("/version").json()["epoch"] for each in (first, second)] == before


def test_a_run_beyond_the_last_is_refused_before_it_is_kept(pair: Fleet) -> None:
    beyond = LAST_RUN + 1
    with pair.proxies[0].admin() as first, pair.proxies[1].admin() as second:
        before = [each.get("/version").json()["run"] for each in (first, second)]
        state = first.get("/peers/weights").json()
        for path, body in (
            ("/recover", {"version": 0, "run": beyond}),
            ("/recover?scope=fleet", {"version": 0, "run": beyond}),
            ("/peers/weights/join", {**state, "run": beyond}),
            ("/peers/weights/join", {**state, "recoveries": [[beyond, 0, "drop"]]}),
        ):
            answer = first.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, INVALID_REQUEST), (path, answer.text)
        assert [each.get("/version").json()["run"] for each in (first, second)] == before


def test_a_proxy_that_refuses_the_key_ends_the_pause_of_the_fleet(tmp_path: Path) -> None:
    """It answers, so it runs, and would go on generating."""
    with running_fleet(tmp_path, proxies=2, start_proxies=False) as fleet:
        other = tmp_path / "other.key"
        other.write_text("another-admin-key-for-tests\n")
        first, second = fleet.proxies
        second.settings["admin_key_file"] = str(other)
        for proxy in fleet.proxies:
            proxy.launch()
        for proxy in fleet.proxies:
            proxy.wait_until_ready()
        with first.admin() as admin:
            answer = admin.post("/pause?scope=fleet", json={"timeout": 30})
            said = answer.json()
            assert (answer.status_code, said["error"]["code"]) == (504, PAUSE_TIMEOUT)
            assert [each["ordinal"] for each in said["failed"]] == [1]
            assert not admin.get("/version").json()["paused"]
            second.kill()
            answer = admin.post("/pause?scope=fleet", json={"timeout": 30})
            assert (answer.status_code, [each["ordinal"] for each in answer.json()["failed"]]) == (200, [1])
            assert answer.json()["paused"]
            admin.post("/continue?scope=fleet").raise_for_status()
