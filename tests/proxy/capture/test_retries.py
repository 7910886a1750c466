"""Which earlier call or turn a request is a retry of, against a plain history of what happened in a session."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.lengths import at_length

from rolloutfleet_proxy.capture.retries import Attempt, earlier
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.session import OPEN
from rolloutfleet_proxy.domain.tree import Node
from rolloutfleet_proxy.domain.turn import Brief
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.registry import Session

BODIES = st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16])
KEYS = st.none() | st.sampled_from(["k1", "k2", "k3"])


@dataclass(eq=False)
class Happened:
    """One request that began a generation, and how it went on."""

    body: bytes
    key: str | None
    call: Call
    caller_there: bool = True
    turn: int | None = None
    failed: bool = False
    extended: bool = False

    @property
    def under_way(self) -> bool:
        return self.turn is None and not self.failed


class Retries(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.history: list[Happened] = []
        self.session = Session(
            id=1,
            name="s",
            key_hash=b"",
            group="g",
            task_id=None,
            metadata_json=None,
            limits={},
            agent_may=frozenset(),
            stale_after=None,
            state=OPEN,
            tokens=0,
            created_at=0.0,
        )

    @rule(body=BODIES, key=KEYS, marked=st.booleans())
    def request(self, body: bytes, key: str | None, marked: bool) -> None:
        """A request is answered as the history says; one that is no retry begins a generation."""
        attempt = Attempt(body=body, idempotency_key=key, marked=marked)
        known = next((past for past in self.history if key is not None and past.key == key and not past.failed), None)
        if known is not None and known.body != body:
            with pytest.raises(DomainError) as refused:
                earlier(self.session, attempt)
            assert status_of(refused.value) == 422
            return
        found = earlier(self.session, attempt)
        expected = self._expected(attempt, known)
        if expected is None:
            assert found is None
            self._begin(body, key)
        elif expected.under_way:
            assert found is expected.call
            expected.call.waiters += 1
            expected.caller_there = True
        else:
            assert found == expected.turn

    def _expected(self, attempt: Attempt, known: Happened | None) -> Happened | None:
        if attempt.idempotency_key is not None:
            return known
        if not attempt.marked:
            return None
        same = [past for past in self.history if past.body == attempt.body]
        abandoned = [past for past in same if past.under_way and not past.caller_there]
        if abandoned:
            return abandoned[-1]
        turns = sorted((past for past in same if past.turn is not None), key=lambda past: past.turn or 0)
        return turns[-1] if turns and not turns[-1].extended else None

    def _begin(self, body: bytes, key: str | None) -> None:
        call = Call(f"turn-{len(self.history)}", body, key, streams=False)
        call.waiters = 1
        self.session.calls._calls.append(call)
        self.history.append(Happened(body, key, call))

    def _under_way(self) -> list[Happened]:
        return [past for past in self.history if past.under_way]

    @precondition(lambda self: self._under_way())
    @rule(data=st.data())
    def the_caller_leaves(self, data: st.DataObject) -> None:
        past = data.draw(st.sampled_from(self._under_way()))
        past.call.waiters = 0
        past.caller_there = False

    @precondition(lambda self: self._under_way())
    @rule(data=st.data())
    def the_generation_fails(self, data: st.DataObject) -> None:
        past = data.draw(st.sampled_from(self._under_way()))
        past.failed = True
        self.session.calls._calls.remove(past.call)

    @precondition(lambda self: self._under_way())
    @rule(data=st.data())
    def the_turn_is_committed(self, data: st.DataObject) -> None:
        past = data.draw(st.sampled_from(self._under_way()))
        committed = [other for other in self.history if other.turn is not None]
        parent = data.draw(st.none() | st.sampled_from(committed)) if committed else None
        past.turn = self.session.turns + 1
        start = 0
        if parent is not None and parent.turn is not None:
            parent.extended = True
            node = self.session.tree.get(parent.turn)
            assert node is not None
            start = node.length
        number = past.turn.to_bytes(16, "big")
        node = Node(
            turn=past.turn,
            parent=None if parent is None else parent.turn,
            start=start,
            length=start + 2,
            history=number,
        )
        brief = Brief(name=past.call.turn_name, body=past.body, idempotency_key=past.key, delivered=True, tokens=2)
        self.session.add(node, brief, 2)
        self.session.calls._calls.remove(past.call)


TestRetries = Retries.TestCase
TestRetries.settings = settings(max_examples=at_length(75, long=150), stateful_step_count=40, deadline=None)
