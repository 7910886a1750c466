"""Kill -9, again and again, over one store and under load: nothing that was answered is ever lost.

The judge is the clients' own record of 2xx answers (`load`). A proxy dies at its failpoints, at random moments with
its connections full, while it starts, and in the middle of every act of a trainer.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.integration.proxy.cleaning import die_in_sweeps
from tests.integration.proxy.load import Conversation, Load
from tests.printing import say
from tests.processes import NotServing

from rolloutfleet_proxy.failpoints import (
    AFTER_COMMIT,
    AFTER_DUMP,
    AFTER_ENGINE,
    AFTER_RENAME,
    BEFORE_ANSWER,
    BEFORE_COMMIT,
    BEFORE_ENGINE,
    IN_TRANSACTION,
    MID_DUMP,
    MID_SWEEP,
    VARIABLE,
)

DEATHS_A_PLACE = 4
RANDOM_DEATHS = 16
MOST_RANDOM_DEATHS = 24
"""Where calls come so slowly that fewer deaths met none."""
PLACES = (BEFORE_ENGINE, AFTER_ENGINE, IN_TRANSACTION, BEFORE_COMMIT, AFTER_COMMIT, BEFORE_ANSWER)
"""On every turn's way."""
TRAINER_DEATHS = (BEFORE_COMMIT, AFTER_COMMIT)
"""Where the proxy dies under each of a trainer's acts."""
SESSIONS = 20
SECONDS_TO_DIE = 60.0
ANYWHERE = "anywhere"
STARTING = "starting"

Json = Any


class Deaths:
    """One proxy's deaths, and all that clients were answered in its lives."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.proxy = fleet.proxy
        self.by_place: Counter[str] = Counter()
        self.conversations: list[Conversation] = []
        self.interrupted: Counter[str] = Counter()
        self.unseen = 0
        """Lives that ended before the check of the one before was done."""

    def die(self, place: str = ANYWHERE) -> None:
        self.proxy.kill_alone()
        self.by_place[place] += 1

    def die_by_itself(self, place: str) -> None:
        self.proxy.wait_until_killed(SECONDS_TO_DIE)
        self.by_place[place] += 1

    def launch(self, place: str | None = None, times: int = 0) -> None:
        """Start anew; told a place, it will die when it comes there for the n-th time.

        The kernel ties the proxy's life to the thread that starts it, so this is for the main thread.
        """
        self.proxy.environment = {} if place is None else {VARIABLE: f"{place}:{times}"}
        self.proxy.launch()

    def __str__(self) -> str:
        answers = sum(len(conversation.answers) for conversation in self.conversations)
        places = ", ".join(f"{place} {times}" for place, times in sorted(self.by_place.items()))
        broken = ", ".join(f"{what} {times}" for what, times in sorted(self.interrupted.items()))
        return (
            f"{self.by_place.total()} kills ({places}); {answers} answers kept in {len(self.conversations)} sessions; "
            f"broke off: {broken}"
        )


@pytest.fixture(scope="module")
def all_deaths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deaths]:
    options = ("--latency", "0.02", "--token-latency", "0.003", "--jitter", "0.5", "--stream-interval", "3")
    with running_fleet(tmp_path_factory.mktemp("kills"), engine_options=options) as fleet:
        yield Deaths(fleet)


@pytest.fixture
def deaths(all_deaths: Deaths, request: pytest.FixtureRequest) -> Iterator[Deaths]:
    yield all_deaths
    say(request, f"by now {all_deaths}")


async def check(deaths: Deaths, load: Load, seen: dict[int, int]) -> None:
    """After a restart: the sums hold, and every answer so far has its turn. `seen`: how many were looked at before."""
    audit = await asyncio.to_thread(deaths.proxy.audit)
    assert audit["balanced"], audit
    for number, conversation in enumerate(load.conversations):
        answers = list(conversation.answers)
        if len(answers) == seen.get(number, 0) or conversation.closed:
            continue
        try:
            turns = await asyncio.to_thread(conversation.session.turns)
        except httpx.HTTPStatusError:
            assert conversation.closed, "gone, and the trainer has not had it"
            continue
        judge.assert_answered_turns_are_there(answers, turns)
        for turn in turns:
            judge.assert_whole(turn)
        seen[number] = len(answers)


async def test_every_answer_outlives_kills_at_every_failpoint(deaths: Deaths) -> None:
    random = Random(11)
    schedule = [place for place in PLACES for _ in range(DEATHS_A_PLACE)]
    random.shuffle(schedule)
    load, seen = Load(deaths.proxy, seed=1), dict[int, int]()
    deaths.die()
    async with load.running():
        for place in schedule:
            with load.held():
                deaths.launch(place, random.randint(6, 20))
                try:
                    await asyncio.to_thread(deaths.proxy.wait_until_ready)
                    await check(deaths, load, seen)
                except (NotServing, httpx.TransportError):
                    # The SDKs' own retries brought it there already. The next look sees what this one did not.
                    deaths.unseen += 1
                    await asyncio.to_thread(deaths.die_by_itself, place)
                    continue
            await asyncio.to_thread(deaths.die_by_itself, place)
        deaths.launch()
        await asyncio.to_thread(deaths.proxy.wait_until_ready)
    assert deaths.unseen < len(schedule) / 2
    finish(deaths, load)


async def test_every_answer_outlives_kills_at_random_moments(deaths: Deaths) -> None:
    random = Random(12)
    load, seen = Load(deaths.proxy, seed=2), dict[int, int]()
    async with load.running():
        for number in range(MOST_RANDOM_DEATHS):
            await asyncio.sleep(random.uniform(0.0, 0.9))
            deaths.die()
            deaths.launch()
            if number % 4 == 3:
                await asyncio.sleep(random.uniform(0.1, 2.0))
                deaths.die(STARTING)
                deaths.launch()
            await asyncio.to_thread(deaths.proxy.wait_until_ready)
            await check(deaths, load, seen)
            if number + 1 >= RANDOM_DEATHS and was_interrupted(load):
                break
    finish(deaths, load)


def was_interrupted(load: Load) -> bool:
    """In the middle of both kinds of calls."""
    return bool(load.interrupted["chat"] and load.interrupted["stream"])


def finish(deaths: Deaths, load: Load) -> None:
    assert was_interrupted(load), "nobody was in the middle of a call"
    assert all(conversation.answers for conversation in load.conversations)
    deaths.conversations += load.conversations
    deaths.interrupted += load.interrupted
    judge.assert_all_is_kept(deaths.fleet, deaths.conversations)


def test_a_trainers_acts_happen_once_each_however_often_the_proxy_dies_under_them(deaths: Deaths) -> None:
    before = deaths.proxy.audit()
    started = dying_under(deaths, "start", [start_request(number) for number in range(SESSIONS)])
    sessions = [AgentSession(deaths.proxy, **{name: reply[name] for name in STARTED}) for reply in started]
    assert len({session.session_id for session in sessions}) == SESSIONS
    turns = [session.raw_chat(CHAT).json()["id"] for session in sessions]

    rewarded = dying_under(deaths, "reward", [reward_request(session, 0.5) for session in sessions])
    assert [reply["turn_id"] for reply in rewarded] == turns

    exports = [export_request(session) for session in sessions]
    leased = dying_under(deaths, "export", exports)
    assert len({reply["lease_id"] for reply in leased}) == SESSIONS
    assert [[turn["turn_id"] for turn in reply["trajectories"][0]["turns"]] for reply in leased] == [[t] for t in turns]
    for request, reply in zip(exports, leased, strict=True):
        assert send(deaths.proxy, request)["trajectories"] == reply["trajectories"]
    held = deaths.proxy.audit()
    assert held["balanced"] and held["turns"]["leased"] == SESSIONS

    trained = dying_under(deaths, "ack", [(f"/leases/{reply['lease_id']}/ack", {}, None) for reply in leased])
    assert [reply["acknowledged"] for reply in trained] == [
        [trajectory["trajectory_id"] for trajectory in reply["trajectories"]] for reply in leased
    ]
    after = deaths.proxy.audit()
    assert after["balanced"]
    assert after["turns"]["acknowledged"] == before["turns"]["acknowledged"] + SESSIONS
    assert after["turns"]["created"] == before["turns"]["created"] + SESSIONS
    assert after["sessions"]["created"] == before["sessions"]["created"] + SESSIONS


CHAT = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 30}
STARTED = ("session_id", "api_key", "base_url")
Request = tuple[str, Json, str | None]
"""Path, body, Idempotency-Key."""


def start_request(number: int) -> Request:
    return "/sessions", {"task_id": f"task {number}"}, f"trainer {number}"


def reward_request(session: AgentSession, reward: float) -> Request:
    return f"/sessions/{session.session_id}/reward", {"reward": reward}, session.session_id


def export_request(session: AgentSession) -> Request:
    return "/export", {"session_ids": [session.session_id]}, session.session_id


def send(proxy: ProxyProcess, request: Request) -> Json:
    path, body, key = request
    with proxy.admin() as admin:
        reply = admin.post(path, json=body, headers={} if key is None else {"Idempotency-Key": key})
    assert reply.is_success, reply.text
    return reply.json()


def dying_under(deaths: Deaths, act: str, requests: list[Request]) -> list[Json]:
    """Every answer, each request sent until it is answered, while the proxy dies under a few of them."""
    deaths.die()
    places = list(TRAINER_DEATHS)
    deaths.launch(places[0], 8)
    deaths.proxy.wait_until_ready()
    answers = []
    for request in requests:
        while True:
            try:
                answers.append(send(deaths.proxy, request))
                break
            except httpx.TransportError:
                deaths.die_by_itself(places.pop(0))
                deaths.interrupted[act] += 1
                deaths.launch(places[0] if places else None, 8)
                deaths.proxy.wait_until_ready()
                assert places or deaths.proxy.audit()["balanced"]
    assert not places, "it did not die often enough"
    return answers


def test_kills_everywhere_in_a_sweep_lose_nothing(tmp_path: Path) -> None:
    places = [(MID_DUMP, 3), (AFTER_RENAME, 2), (AFTER_DUMP, 1), (MID_SWEEP, 1), (BEFORE_COMMIT, 2)]
    with running_fleet(tmp_path, start_proxies=False) as fleet:
        die_in_sweeps(fleet.proxy, places)
