"""What the killer is made of: the schedule, the journal that judges, and the sum of legs. The committed result, too."""

import json
import platform
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from tests.integration.proxy.answers import Answer
from tests.timing.kills import results
from tests.timing.kills.agents import Agents
from tests.timing.kills.asking import Asking, Unexpected
from tests.timing.kills.cli import main
from tests.timing.kills.journal import CALL, START, Journal
from tests.timing.kills.kinds import AT_WORK, OF_NO_PROXY, PLACES, UNDER_WAY, Kill, Kind
from tests.timing.kills.results import (
    LATEST,
    LEAST,
    LEAST_OF_A_KIND,
    added,
    covers_enough,
    is_clean,
    record_of,
    result,
    summary,
    write,
)
from tests.timing.kills.run import Asked, Outcome
from tests.timing.kills.schedule import AHEAD, Schedule

from rolloutfleet_proxy.ids import Owner

SESSION, OTHER = (Owner(0, "0123456789ab").name("s") for _ in range(2))


def taken(schedule: Schedule) -> list[Kind]:
    """All of it, as one proxy that never dies and the gateway take it in turns."""
    found: list[Kind] = []
    while True:
        kinds = [kind for kind in (schedule.between(), schedule.for_proxy()) if kind is not None]
        if not kinds:
            return found
        found += kinds


# The schedule


def test_there_are_as_many_of_each_kind() -> None:
    counts = Counter(taken(Schedule(100, list(Kind), Random(1))))
    assert counts == dict.fromkeys(Kind, 10)


def test_what_was_missed_comes_again() -> None:
    schedule = Schedule(1, [Kind.DUMP], Random(1))
    assert schedule.for_proxy() is Kind.DUMP and schedule.for_proxy() is None
    schedule.put_back(Kind.DUMP)
    assert schedule.for_proxy() is Kind.DUMP


def test_the_gateway_and_engines_are_spread_over_the_whole() -> None:
    kinds = taken(Schedule(200, list(Kind), Random(1)))
    halves = [sum(kind in OF_NO_PROXY for kind in half) for half in (kinds[:100], kinds[100:])]
    assert all(18 <= half <= 22 for half in halves), halves
    alone = Schedule(2, [Kind.GATEWAY], Random(1))
    assert [alone.between(), alone.between(), alone.between()] == [Kind.GATEWAY, Kind.GATEWAY, None]


def test_a_proxy_that_has_to_start_anyway_takes_a_start_up_that_is_near() -> None:
    schedule = Schedule(AHEAD, [Kind.START_UP, Kind.WORKER], Random(1))
    assert schedule.for_dead_proxy() is Kind.START_UP
    without = Schedule(AHEAD, [Kind.WORKER], Random(1))
    assert not without.start_up_is_near and without.for_dead_proxy() is None


def test_start_ups_come_to_proxies_that_serve_where_nothing_else_is_left() -> None:
    schedule = Schedule(8, [Kind.START_UP, Kind.WORKER], Random(1))
    assert [schedule.for_proxy() for _ in range(8)] == [Kind.WORKER] * 4 + [Kind.START_UP] * 4


def test_every_place_of_a_kill_says_what_is_under_way_there() -> None:
    assert {place for places in PLACES.values() for place in places} | {*AT_WORK} - {None} == UNDER_WAY.keys()


# The journal


def told(content: str) -> Journal:
    """Of a session with one answered turn."""
    made = Journal()
    message = {"role": "assistant", "content": content}
    answer = Answer(turn_id="turn 1", parent_id=None, message=message, finish_reason="stop", logprobs=None)
    made.answered(made.started("a key", SESSION), answer)
    return made


@pytest.fixture
def journal() -> Journal:
    """The turn has been exported and acknowledged, too."""
    made = told("Sunny.")
    made.exported([trajectory()])
    made.acknowledged(["trajectory 1"])
    return made


def trajectory(**changed: Any) -> Any:
    message = {"role": "assistant", "content": "Sunny."}
    turn = {"turn_id": "turn 1", "parent_id": None, "reward": None, "finish_reason": "stop", "message": message}
    return {"trajectory_id": "trajectory 1", "session_id": SESSION, "turns": [turn | changed]}


def test_a_journal_of_what_should_be_shows_nothing(journal: Journal) -> None:
    journal.started("a key", SESSION)
    journal.check_every_answer_was_exported_once()
    assert not (journal.contradictions or journal.lost or journal.twice)


def test_an_answer_that_was_never_exported_is_lost() -> None:
    made = told("Sunny.")
    made.check_every_answer_was_exported_once()
    assert made.lost == {"turn 1"} and "is lost" in made.contradictions[0]


def test_an_answer_that_is_exported_as_another_is_a_contradiction() -> None:
    made = told("Rain.")
    made.exported([trajectory()])
    made.acknowledged(["trajectory 1"])
    made.check_every_answer_was_exported_once()
    assert "is not what was answered" in made.contradictions[0]


def test_what_was_acknowledged_and_comes_again_is_there_twice(journal: Journal) -> None:
    journal.exported([trajectory()])
    assert journal.twice == {"trajectory 1"} and journal.contradictions


def test_what_comes_again_must_be_the_same(journal: Journal) -> None:
    journal.trajectories["trajectory 1"].acknowledged = False
    journal.exported([trajectory()])
    assert not journal.contradictions
    journal.exported([trajectory(reward=1.0)])
    assert "came again with other turns" in journal.contradictions[0]


def test_a_turn_in_two_trajectories_is_there_twice(journal: Journal) -> None:
    journal.exported([trajectory() | {"trajectory_id": "trajectory 2"}])
    journal.acknowledged(["trajectory 2"])
    journal.check_every_answer_was_exported_once()
    assert journal.twice == {"turn 1"}


def test_what_was_given_back_and_never_came_again_is_lost_unless_somebody_else_acknowledged_it(
    journal: Journal,
) -> None:
    journal.check_came_again({"trajectory 1"}, set())
    assert not journal.contradictions
    journal.trajectories["trajectory 1"].acknowledged = False
    journal.check_came_again({"trajectory 1"}, set())
    assert journal.lost == {"trajectory 1"} and journal.contradictions


def test_a_start_key_with_two_sessions_is_a_contradiction(journal: Journal) -> None:
    journal.started("a key", OTHER)
    assert journal.twice == {"a key"} and "and" in journal.contradictions[0]


def test_the_journal_knows_who_waits_for_a_proxy() -> None:
    made = Journal()
    with made.asking(CALL, 0), made.asking(CALL, 0), made.asking(START, 1):
        assert made.waiting(0) == {CALL: 2} and made.waiting() == {CALL: 2, START: 1}
    assert made.waiting() == {}


# Agents


class Told(Asking):
    """Gets these answers, one after the other."""

    def __init__(self, *answers: httpx.Response) -> None:
        super().__init__([], Journal())
        self._answers = list(answers)

    async def until_told(self, *_: Any, **__: Any) -> httpx.Response:
        return self._answers.pop(0)


class Always(Random):
    """Whatever has a chance happens."""

    def random(self) -> float:
        return 0.0


STARTED = httpx.Response(201, json={"session_id": SESSION, "api_key": "a key", "base_url": "an address"})
RECLAIMED = httpx.Response(410, json={"error": {"message": f"Session {SESSION} was reclaimed: it was not used."}})


@pytest.mark.parametrize("answers", [(RECLAIMED,), (STARTED, RECLAIMED)])
async def test_an_agent_gives_a_session_up_that_its_start_finds_gone(answers: tuple[httpx.Response, ...]) -> None:
    told = Told(*answers)
    agents = Agents(told, proxies=1, seed=1, closed=lambda session, ordinal: None)
    talk, address = await agents.start(Always(), 0, left=True)
    assert talk.session_id == SESSION and address is None, "its key may be void"
    assert list(told.journal.talks) == [SESSION] and not told.journal.contradictions


async def test_only_a_session_that_is_left_alone_may_be_gone() -> None:
    for answers in ((RECLAIMED,), (STARTED, RECLAIMED)):
        told = Told(*answers)
        agents = Agents(told, proxies=1, seed=1, closed=lambda session, ordinal: None)
        try:
            await agents.start(Always(), 0, left=False)
        except Unexpected:
            continue
        assert told.journal.contradictions


# The result


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is checked out and installed, and the machine: nobody asks git or `uname`, or reads all distributions."""
    monkeypatch.setattr(results, "commit", lambda: "a commit")
    monkeypatch.setattr(results, "_gateways", list)
    monkeypatch.setattr(platform, "platform", lambda: "a system")


KILL = Kill(kind=Kind.WORKER, target="proxy 0", how="", under_way=CALL, seen_by="/stats", clients={CALL: 2})


def leg(kills: int = 1, **changed: Any) -> Any:
    return summary([KILL] * kills, Counter(), Journal(), seed=7, audits=1, seconds=1.5) | changed


def test_legs_are_added_up() -> None:
    total = added([leg(1), leg(2, contradictions=["one"]), leg(3, answers={"turn": 5})])
    assert (total["legs"], total["kills"], total["seconds"], total["audits_compared"]) == (3, 6, 4.5, 3)
    assert total["by_kind"] == {"worker": 6} and total["under_way_by_kind"] == {"worker": {CALL: 6}}
    assert total["clients_that_waited"] == {CALL: 12} and total["answers"] == {"turn": 5}
    assert total["contradictions"] == ["one"] and total["seeds"] == [7, 7, 7]


def test_a_result_is_clean_only_where_it_is_complete_and_nothing_was_found() -> None:
    def of(record: Any, asked: int = 1) -> Any:
        return result(record, asked=asked, proxies=1, date="2026-11-23")

    assert is_clean(of(leg())) and not is_clean(of(leg(), asked=2))
    assert not any(is_clean(of(leg(**wrong))) for wrong in ({"lost": 1}, {"twice": 1}, {"contradictions": ["one"]}))
    assert record_of(of(leg())) == leg()


# Legs


@pytest.fixture
def legs(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What each leg was asked to do. None of them starts anything; one of seed 13 is interrupted, of seed 14 wrong."""
    asked: list[Asked] = []

    def run(leg_asked: Asked, folder: Path, *, killed: Any, **_: Any) -> Outcome:
        asked.append(leg_asked)
        killed(KILL)
        if leg_asked.seed == 13:
            raise KeyboardInterrupt
        wrong = ["what can't be"] if leg_asked.seed == 14 else []
        record = leg(leg_asked.kills, contradictions=wrong)
        return Outcome(kills=[KILL] * leg_asked.kills, contradictions=wrong, record=record)

    monkeypatch.setattr("tests.timing.kills.cli.run", run)
    monkeypatch.setattr("tests.timing.kills.cli.stop_as_by_ctrl_c", lambda: None)
    return asked


def test_a_run_is_done_in_legs_with_seeds_of_their_own(tmp_path: Path, legs: list[Asked]) -> None:
    file = tmp_path / "kept.json"
    assert main(["--kills", "5", "--leg", "2", "--seed", "1", "--output", str(file)]) == 0
    assert [(each.kills, each.seed) for each in legs] == [(2, 1), (2, 2), (1, 3)]
    kept = json.loads(file.read_text())
    assert (kept["kills"], kept["legs"]) == (5, 3) and is_clean(kept)


def test_an_interrupted_run_says_what_it_covered_and_is_resumed(
    tmp_path: Path, legs: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    asked = ["--kills", "5", "--leg", "2", "--output", str(file)]
    assert main([*asked, "--seed", "12"]) == 130
    told = capsys.readouterr().out
    assert "Not judged: worker 1." in told and "2 kills in" in told
    assert not is_clean(json.loads(file.read_text()))
    assert main([*asked, "--seed", "1", "--resume"]) == 0
    assert [(each.kills, each.seed) for each in legs[2:]] == [(2, 2), (1, 3)]
    assert json.loads(file.read_text())["kills"] == 5


def test_a_leg_that_shows_something_wrong_is_the_last_and_leaves_the_result_of_those_before_it(
    tmp_path: Path, legs: list[Asked], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = tmp_path / "kept.json"
    assert main(["--kills", "2", "--leg", "2", "--seed", "1", "--output", str(file)]) == 0
    assert main(["--kills", "9", "--leg", "2", "--seed", "13", "--output", str(file), "--resume"]) == 1
    assert "WRONG: what can't be" in capsys.readouterr().out
    assert len(legs) == 2 and json.loads(file.read_text())["kills"] == 2
    [kept] = tmp_path.glob("rolloutfleet-kills-*/record.json")
    assert json.loads(kept.read_text())["contradictions"] == ["what can't be"]


def test_a_result_of_other_code_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kept.json"
    write(result(leg(), asked=2, proxies=1, date="2026-11-23") | {"code": "other"}, file)
    assert main(["--resume", "--output", str(file)]) == 2
    assert "other code" in capsys.readouterr().out


def test_the_committed_result_is_of_kills_that_lost_and_doubled_nothing() -> None:
    kept = json.loads(LATEST.read_text(encoding="utf-8"))
    assert is_clean(kept) and covers_enough(kept)
    assert kept["kills"] == sum(kept["by_kind"].values()) >= LEAST
    assert min(kept["by_kind"][kind] for kind in Kind) >= LEAST_OF_A_KIND
    assert kept["audits_compared"] == kept["proxies"] * kept["legs"] > 0
    for kind in Kind:
        assert sum(kept["under_way_by_kind"][kind].values()) == kept["by_kind"][kind], "each was seen at work"
