"""Which earlier call or turn a request is a retry of, against a plain history of what happened in a session."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.proxy.capture.sessions import open_session

from rolloutfleet_proxy.capture.retries import Attempt, digest_of, earlier
from rolloutfleet_proxy.dialects.base import Dialect, Reading
from rolloutfleet_proxy.dialects.registry import DIALECTS
from rolloutfleet_proxy.domain.errors import ClientGone, DomainError
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.messages import conversation
from rolloutfleet_proxy.domain.tree import Node
from rolloutfleet_proxy.domain.turn import Brief, Delivery
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.store.deliveries import Deliveries

DIGESTS = st.sampled_from([b"a" * 16, b"b" * 16])
BODIES = st.sampled_from([b"A" * 16, b"B" * 16])
KEYS = st.none() | st.sampled_from(["k1", "k2"])


@dataclass(eq=False)
class Happened:
    """One request that began a generation, and how it went on."""

    digest: bytes
    key: str | None
    call: Call
    callers: int = 1
    """Who wait for the answer, or are being given it."""
    turn: int | None = None
    length: int = 0
    """Messages up to and with the turn's answer."""
    failed: bool = False
    extended: bool = False
    arrived: bool = False
    closed: bool = False

    @property
    def under_way(self) -> bool:
        return self.turn is None and not self.failed

    @property
    def may_be_asked_for(self) -> bool:
        """Nobody has it, and nobody waits for it."""
        if self.failed or self.key is not None or self.callers:
            return False
        return self.turn is None or not (self.arrived or self.extended or self.closed)


class Retries(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.history: list[Happened] = []
        self.session = open_session()
        self.turns = turn_service()

    @rule(digest=DIGESTS, marked=st.booleans())
    def request(self, digest: bytes, marked: bool) -> None:
        """A request is answered as the history says; one that is no retry begins a generation."""
        attempt = Attempt(digest, None, marked)
        self._answered(attempt, self._expected(attempt))

    @rule(body=BODIES, key=KEYS.filter(bool), marked=st.booleans())
    def request_with_a_key(self, body: bytes, key: str, marked: bool) -> None:
        attempt = Attempt(body, key, marked)
        known = next((past for past in self.history if past.key == key and not past.failed), None)
        if known is not None and known.digest != body:
            with pytest.raises(DomainError) as refused:
                earlier(self.session, attempt)
            assert status_of(refused.value) == 422
            return
        self._answered(attempt, known)

    def _answered(self, attempt: Attempt, expected: Happened | None) -> None:
        found = earlier(self.session, attempt)
        if expected is None:
            assert found is None
            self._begin(attempt)
            return
        expected.callers += 1
        if expected.turn is None:
            assert found is expected.call
            expected.call.join()
        else:
            assert found == expected.turn
            self.turns.give(self.session, expected.turn)

    def _expected(self, attempt: Attempt) -> Happened | None:
        same = [past for past in self.history if past.digest == attempt.digest]
        lost = [past for past in same if past.may_be_asked_for]
        calls = [past for past in lost if past.turn is None]
        if calls:
            return calls[-1]
        if lost:
            return max(lost, key=lambda past: past.turn or 0)
        turns = sorted((past for past in same if past.turn is not None), key=lambda past: past.turn or 0)
        return turns[-1] if attempt.marked and turns and not turns[-1].extended else None

    def _begin(self, attempt: Attempt) -> None:
        call = Call(f"turn-{len(self.history)}", attempt.digest, attempt.idempotency_key, streams=False)
        call.join()
        self.session.calls._calls.append(call)
        self.history.append(Happened(attempt.digest, attempt.idempotency_key, call))

    def _under_way(self) -> list[Happened]:
        return [past for past in self.history if past.under_way]

    def _awaited(self) -> list[Happened]:
        return [past for past in self.history if past.callers and not past.failed]

    @precondition(lambda self: self._awaited())
    @rule(data=st.data())
    def a_caller_leaves(self, data: st.DataObject) -> None:
        """Before the generation's end, or before the last byte of its answer."""
        past = data.draw(st.sampled_from(self._awaited()))
        past.callers -= 1
        if past.turn is None:
            past.call.waiters -= 1
        elif not past.callers:
            self.turns.lost(self.session, past.turn)

    @precondition(lambda self: any(past.turn for past in self._awaited()))
    @rule(data=st.data())
    def the_last_byte_leaves(self, data: st.DataObject) -> None:
        past = data.draw(st.sampled_from([past for past in self._awaited() if past.turn]))
        past.callers -= 1
        past.arrived = True
        self.turns.arrived(self.session, past.turn or 0)

    @precondition(lambda self: self._under_way())
    @rule(data=st.data())
    def the_generation_fails(self, data: st.DataObject) -> None:
        past = data.draw(st.sampled_from(self._under_way()))
        past.failed = True
        self.session.calls._calls.remove(past.call)

    @precondition(lambda self: self._under_way())
    @rule(data=st.data())
    def the_generation_is_cut(self, data: st.DataObject) -> None:
        """Its task is told so, and has not ended yet."""
        past = data.draw(st.sampled_from(self._under_way()))
        past.failed = True
        past.call.ended_by = ClientGone()

    @precondition(lambda self: self._under_way())
    @rule(data=st.data())
    def the_turn_is_committed(self, data: st.DataObject) -> None:
        past = data.draw(st.sampled_from(self._under_way()))
        committed = [other for other in self.history if other.turn is not None]
        parent = data.draw(st.none() | st.sampled_from(committed)) if committed else None
        past.turn = self.session.turns + 1
        start = 0
        if parent is not None and parent.turn is not None:
            parent.extended = parent.arrived = True
            self.turns.arrived(self.session, parent.turn)
            start = parent.length
        past.length = start + 2
        number = past.turn.to_bytes(16, "big")
        node = Node(
            turn=past.turn,
            parent=None if parent is None else parent.turn,
            start=start,
            length=past.length,
            history=number,
        )
        brief = Brief(past.call.turn_name, past.digest, past.key, Delivery.UNDER_WAY, tokens=2)
        self.session.add(node, brief, 2)
        if not past.callers:
            self.turns.lost(self.session, past.turn)
        self.session.calls._calls.remove(past.call)

    @rule()
    def a_reward_closes_what_is_committed(self) -> None:
        self.session.closed_up_to(self.session.turns)
        for past in self.history:
            past.closed = past.closed or past.turn is not None


TestRetries = Retries.TestCase
TestRetries.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)


def committed(
    within: Session, number: int, digest: bytes, *, parent: int | None = None, delivered: Delivery = Delivery.ARRIVED
) -> None:
    """A turn, and what became of its answer."""
    start = 0 if parent is None else 2
    node = Node(turn=number, parent=parent, start=start, length=start + 2, history=bytes([number]) * 16)
    within.add(node, Brief(f"turn-{number}", digest, None, delivered, tokens=2), 2)


@pytest.mark.parametrize(("delivered", "given"), [(Delivery.UNDER_WAY, None), (Delivery.LOST, 1)])
def test_a_request_without_a_mark_gets_an_answer_that_was_lost_and_none_that_is_on_its_way(
    delivered: Delivery, given: int | None
) -> None:
    found = open_session()
    committed(found, 1, b"a" * 16, delivered=delivered)
    assert earlier(found, Attempt(b"a" * 16, None, False)) == given


def test_a_marked_retry_gets_the_newest_turn_unless_another_extends_it() -> None:
    own, other = b"a" * 16, b"b" * 16
    found = open_session()
    committed(found, 1, own)
    committed(found, 2, own)
    assert [earlier(found, Attempt(own, None, marked)) for marked in (True, False)] == [2, None]
    committed(found, 3, other, parent=2)
    assert earlier(found, Attempt(own, None, True)) is None


def turn_service() -> TurnService:
    """Without a store that its notes would come to."""
    nothing: Any = None
    store: Any = SimpleNamespace(writer=SimpleNamespace(deliveries=Deliveries()))
    return TurnService(store=store, sessions=nothing, paths=nothing, admission=nothing, commits=nothing)


DIALECT_BODIES: dict[str, Any] = {
    "openai_chat": b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "temperature": 0.5 MORE}',
    "anthropic_messages": b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9,'
    b' "temperature": 0.5 MORE}',
    "openai_responses": b'{"input": "hi", "max_output_tokens": 9, "temperature": 0.5 MORE}',
}


def digest(
    dialect: Dialect[Any], more: bytes = b"", lineage: Lineage = MAIN, swap: tuple[bytes, bytes] = (b"", b"")
) -> bytes:
    body = DIALECT_BODIES[dialect.name].replace(b" MORE", more).replace(*swap)
    request = dialect.read(body, Reading())
    return digest_of(request, conversation(request.messages, request.template), lineage)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_request_without_a_stream_equals_the_one_with_it(dialect: Dialect[Any]) -> None:
    same = {digest(dialect, more) for more in (b"", b', "stream": true', b', "stream": false')}
    assert len(same) == 1


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "swap", [(b"0.5", b"0.6"), (b": 9", b": 10"), (b'"hi"', b'"ho"')], ids=["temperature", "limit", "message"]
)
def test_requests_that_are_sampled_otherwise_are_others(dialect: Dialect[Any], swap: tuple[bytes, bytes]) -> None:
    assert digest(dialect) != digest(dialect, swap=swap)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_another_lineage_asks_is_another_request(dialect: Dialect[Any]) -> None:
    others = [
        Lineage("a1", "subagent", "main"),
        Lineage("a2", "subagent", "main"),
        Lineage("main", "compaction", "main"),
    ]
    assert len({digest(dialect), *(digest(dialect, lineage=other) for other in others)}) == 4


def test_what_claude_code_moves_and_adds_does_not_count() -> None:
    messages = next(dialect for dialect in DIALECTS if dialect.name == "anthropic_messages")
    cached = (b'"hi"', b'[{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]')
    assert digest(messages) == digest(messages, swap=cached)
    header = b', "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=%d;"}]'
    assert digest(messages, header % 1) == digest(messages, header % 2)


def test_other_tools_are_another_request() -> None:
    chat = next(dialect for dialect in DIALECTS if dialect.name == "openai_chat")
    tool = b', "tools": [{"type": "function", "function": {"name": "%s", "parameters": {"type": "object"}}}]'
    assert len({digest(chat), digest(chat, tool % b"one"), digest(chat, tool % b"two")}) == 3
