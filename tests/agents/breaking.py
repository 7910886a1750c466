"""What breaks under a program in mid-task: engines, connections, the proxy. Its task is done all the same, by as many
generations as there are turns."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from tests.agents.cutting import held_before_its_answer, relay_to
from tests.agents.fleet import until_a_second_answer_is_made
from tests.agents.judging import assert_one_conversation, judged
from tests.agents.programs import Ended, Program
from tests.fleets import AgentSession, Fleet

Json = Any

TASK = "TASK-TOOLS, please."
"""Its cue has four replies, the second of which begins with text."""
DONE = "One, zwei ✓, and an error."
"""What the last of them says."""


class Breaking(ABC):
    """Of a program, whose tests derive it and have the fixtures `fleet`, `session` and `agent`."""

    delta: ClassVar[bytes]
    """The name of the event that brings text."""

    @abstractmethod
    def last_words(self, ended: Ended) -> Json:
        """The answer of a run that ended well."""

    @pytest.mark.parametrize(
        "fault", [{"kind": "error_503"}, {"kind": "cut_stream", "after_tokens": 9}], ids=lambda it: it["kind"]
    )
    def test_an_engine_that_fails_costs_no_turn(
        self, fleet: Fleet, session: AgentSession, agent: Program, fault: dict[str, Json]
    ) -> None:
        fleet.engine.fault(**fault)
        self._done(fleet, session, agent.run(TASK))

    def test_a_proxy_that_is_killed_in_mid_answer_costs_one_generation_and_no_turn(
        self, fleet: Fleet, session: AgentSession, agent: Program
    ) -> None:
        before = fleet.engine.counters()
        running = agent.start(TASK)
        until_a_second_answer_is_made(fleet, before)
        fleet.proxy.kill()
        fleet.proxy.start()
        self._done(fleet, session, running.wait())
        after = fleet.engine.counters()
        finished, aborted = (after[name] - before[name] for name in ("finished", "aborted_by_caller"))
        # The engine may finish the one that is lost, too, before it learns that nobody waits for it.
        assert finished >= 4 and finished + aborted <= 5, (finished, aborted)

    @pytest.mark.parametrize("lost", ["in mid-stream", "after the commit"])
    def test_an_answer_whose_connection_breaks_is_not_made_twice(
        self, fleet: Fleet, session: AgentSession, agent: Program, lost: str
    ) -> None:
        before = fleet.engine.counters()
        with relay_to(fleet) as relay:
            url = session.base_url.replace(f":{fleet.proxy.port}/", f":{relay.port}/")
            running = replace(agent, base_url=url).start(TASK)
            if lost == "in mid-stream":
                relay.cut_at(self.delta)
            else:
                until_a_second_answer_is_made(fleet, before)
                with held_before_its_answer(fleet):
                    relay.cut()
            ended = running.wait()
            assert relay.cuts == 1
        self._done(fleet, session, ended)
        assert fleet.engine.counters()["finished"] - before["finished"] == 4

    def test_a_proxy_that_is_killed_between_commit_and_answer_costs_nothing(
        self, fleet: Fleet, session: AgentSession, agent: Program
    ) -> None:
        before = fleet.engine.counters()
        running = agent.start(TASK)
        until_a_second_answer_is_made(fleet, before)
        with held_before_its_answer(fleet):
            fleet.proxy.kill()
        fleet.proxy.start()
        turns = self._done(fleet, session, running.wait())
        notes = [note["rid"].partition(".")[0] for note in fleet.engine.log()]
        assert sorted(turn["turn_id"] for turn in turns) == sorted(set(notes[-4:]))

    def _done(self, fleet: Fleet, session: AgentSession, ended: Ended) -> list[Json]:
        assert self.last_words(ended) == DONE, ended.shown
        turns = judged(fleet, session)
        assert len(turns) == 4
        assert_one_conversation(turns)
        return turns
