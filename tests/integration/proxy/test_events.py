"""GET /events tells of turns once they are committed; whoever follows is no caller, and is waited for by nobody."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.calls import RETRY, leave_early, total
from tests.integration.proxy.test_conversation import page, say
from tests.waiting import PATIENCE, eventually, until

from rolloutfleet.wire import CommittedTurn

Json = Any
GRACE = 4.0


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose engine takes 10 ms a token, with a short grace."""
    settings = {"sessions": {"retryGrace": f"{GRACE}s"}}
    folder = tmp_path_factory.mktemp("slow")
    with running_fleet(folder, engine_options=("--token-latency", "0.01"), settings=settings) as running:
        yield running


class Following:
    """An open stream of events."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.iter_lines()
        assert next(self._lines).startswith(":"), "something is told at once"

    def next(self) -> tuple[str, str, Json]:
        """(event, id, data) of the next one; raises StopIteration where it has ended."""
        event: dict[str, str] = {}
        for line in self._lines:
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value
            elif "data" in event:
                return event["event"], event.get("id", ""), json.loads(event["data"])
            elif not line:
                event = {}
        raise StopIteration

    def ended(self) -> bool:
        return all(not line or line.startswith((":", "id:")) for line in self._lines)


@contextlib.contextmanager
def following(proxy: ProxyProcess, after: str | None = None, **query: str) -> Iterator[Following]:
    headers = {} if after is None else {"last-event-id": after}
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(proxy.admin())

        def let_in() -> httpx.Response | None:
            answer = stack.enter_context(admin.stream("GET", "/events", params=query, headers=headers))
            if answer.status_code == 429:
                answer.close()
                return None
            return answer

        # Those of the tests before have left, but a proxy learns of that in its own time.
        answer = until(let_in)
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Following(answer)


def test_each_commit_is_told_with_its_parent(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    with following(proxy) as events:
        said, first = say(session, {"role": "user", "content": "One"})
        _, second = say(session, *said, {"role": "user", "content": "Two"})
        told = [events.next(), events.next()]
    assert [each[:2] for each in told] == [("commit", first), ("commit", second)]
    commits = [CommittedTurn.model_validate(data) for _, _, data in told]
    assert [(each.session_id, each.turn_id, each.parent_id) for each in commits] == [
        (session.session_id, first, None),
        (session.session_id, second, first),
    ]
    assert commits[1].seq == commits[0].seq + 1


def test_who_comes_again_is_told_what_was_committed_meanwhile(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    turns = [say(session, {"role": "user", "content": f"{number}"})[1] for number in range(3)]
    for how in ({"after": turns[0]}, {"cursor": turns[0]}, {"cursor": "unknown", "after": turns[0]}):
        with following(proxy, **how) as events:
            assert [events.next()[1] for _ in range(2)] == turns[1:]
    with following(proxy, cursor=turns[0], follow="false") as events:
        assert [events.next()[1] for _ in range(2)] == turns[1:] and events.ended()
    with following(proxy, after="turn-unknown") as events:
        assert events.next() == ("reset", turns[2], {})


def test_the_ninth_is_sent_away_until_one_leaves(proxy: ProxyProcess) -> None:
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(following(proxy)) for _ in range(8)]
        with proxy.admin() as admin:
            ninth = admin.get("/events")
            assert ninth.status_code == 429 and ninth.headers["retry-after"] == "1"
            assert ninth.json()["error"]["code"] == "too_many_viewers"
        readers[0].answer.close()
        asyncio.run(eventually(lambda: _is_let_in(proxy)))


def _is_let_in(proxy: ProxyProcess) -> bool:
    with proxy.admin() as admin, admin.stream("GET", "/events") as answer:
        return answer.status_code == 200


def test_it_takes_the_admins_key(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    assert httpx.get(f"{proxy.url}/events").status_code == 401
    assert httpx.get(f"{proxy.url}/events", headers={"x-api-key": session.api_key}).status_code == 403


def test_a_drain_ends_who_follows_and_does_not_wait_for_them(proxy: ProxyProcess) -> None:
    with following(proxy) as events:
        try:
            assert proxy.drain("cordoned", mode="cordon").status_code == 200
            say_nothing_ended(events)
            assert proxy.drain("cordoned", mode="quiesce").status_code == 200
            assert events.ended()
            assert proxy.stats()["drain"]["under_way"] == 0
            with proxy.admin() as admin:
                late = admin.get("/events")
            assert late.status_code == 503 and late.json()["error"]["code"] == "draining"
        finally:
            with proxy.admin() as admin:
                admin.delete("/drain")
    with following(proxy):
        pass


def say_nothing_ended(events: Following) -> None:
    assert not events.answer.is_closed


def test_a_restart_waits_for_nobody_who_follows_and_they_go_on_where_they_were(
    tmp_path_factory: Any, shared: Fleet
) -> None:
    settings = {"drain_timeout": 600}  # what waits for them, waits for longer than the test does
    with running_fleet(tmp_path_factory.mktemp("restarted"), beside=shared, settings=settings) as fleet:
        proxy = fleet.proxy
        session = proxy.start_session()
        _, first = say(session, {"role": "user", "content": "One"})
        _, second = say(session, {"role": "user", "content": "Two"})
        with following(proxy) as events:
            assert proxy.drain("again", then="restart").status_code == 200
            assert events.ended()
        asyncio.run(eventually(lambda: proxy.workers_begun() == 2))
        with following(proxy, after=first) as events:
            _, third = say(session, {"role": "user", "content": "Three"})
            assert [events.next()[1] for _ in range(2)] == [second, third]
            assert proxy.process is not None
            proxy.process.terminate()
            assert proxy.process.wait(PATIENCE) == 0
            with contextlib.suppress(httpx.RemoteProtocolError):
                assert events.ended()


def test_who_has_seen_a_turn_that_is_gone_since_goes_on_from_it_after_a_restart(tmp_path: Path, shared: Fleet) -> None:
    with running_fleet(tmp_path, beside=shared) as fleet:
        proxy = fleet.proxy
        kept, gone = proxy.start_session(), proxy.start_session()
        _, first = say(kept, {"role": "user", "content": "One"})
        _, second = say(gone, {"role": "user", "content": "Two"})
        with proxy.admin() as admin:
            admin.delete(f"/sessions/{gone.session_id}").raise_for_status()
        assert proxy.drain("again", then="restart").status_code == 200
        asyncio.run(eventually(lambda: proxy.workers_begun() == 2))
        with following(proxy, after=second) as newest, following(proxy, after=first) as older:
            _, third = say(kept, {"role": "user", "content": "Three"})
            assert newest.next()[:2] == ("commit", third)
            assert [older.next()[:2] for _ in range(2)] == [("commit", second), ("commit", third)]


async def test_a_call_that_is_left_while_others_look_on_is_left(slow: Fleet) -> None:
    """Its grace, what is known of its delivery, and its retry are those of a call that nobody looks at."""
    proxy = slow.proxy
    session = proxy.start_session()
    long = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000, "ignore_eos": True}
    # Half of the grace: it is under way when its caller leaves late, and ends in time where the engine is slow.
    short = {**long, "max_tokens": 200}
    with following(proxy) as events:
        await leave_early(slow, session, long)
        await eventually(lambda: total(slow, "running") == 0)
        assert page(session)["turns"] == [] and session.turns() == []
        await leave_early(slow, session, short)
        _, name, _ = await asyncio.to_thread(events.next)
        (turn,) = page(session)["turns"]
        assert turn["turn_id"] == name and turn["delivered"] is False
        reply = await asyncio.to_thread(session.raw_chat, short, **RETRY)
        assert reply.json()["id"] == name
        await eventually(lambda: page(session)["turns"][0]["delivered"])
    assert len(session.turns()) == 1
