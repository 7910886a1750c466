"""Who has closed its connection is known without a round of the event loop, and awaited until it has left."""

import asyncio

import pytest
from tests.unit.loop import UnitLoop
from tests.unit.proxy.http.leaving import LARGE, Answering, Leave, close, close_one_way, leaves

from rolloutfleet_proxy.http.departures import Callers


@pytest.mark.parametrize("size", [1, LARGE], ids=["all is taken", "much waits"])
@pytest.mark.parametrize("leave", [close, close_one_way])
async def test_a_client_that_has_closed_is_known_to_have_before_the_loop_reads_of_it(leave: Leave, size: int) -> None:
    answering, loop = Answering(size), asyncio.get_running_loop()
    assert isinstance(loop, UnitLoop)
    await loop.create_server(answering.protocol, port=80)
    await leaves(answering, loop.connect("127.0.0.1", 80), leave)


async def test_who_has_closed_is_awaited_until_it_has_left_and_nobody_else_is() -> None:
    callers, gone = Callers(), {"a": False, "b": False}
    leaves = {name: asyncio.Event() for name in gone}

    async def wait(name: str) -> None:
        with callers.waits("alike", lambda: gone[name]):
            await leaves[name].wait()

    waiting = [asyncio.create_task(wait(name)) for name in gone]
    assert "alike" not in callers
    await asyncio.sleep(0)
    assert "alike" in callers and "other" not in callers
    for alike in ("alike", "other"):
        with pytest.raises(StopIteration) as ended:
            callers.departed(alike).send(None)
        assert ended.value.value is False, "it took no round of the loop"
    gone["a"] = True
    asking = [asyncio.create_task(callers.departed("alike")) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.wait(asking[:1])
    assert not any(each.done() for each in asking[1:])
    leaves["a"].set()
    assert await asyncio.gather(*asking[1:]) == [True, True]
    leaves["b"].set()
    await asyncio.gather(*waiting)
    assert "alike" not in callers


async def test_a_caller_that_may_still_wait_is_looked_at_until_that_is_known() -> None:
    callers, looks = Callers(), iter([None, None, False])
    with callers.waits("alike", lambda: next(looks)):
        assert [await callers.departed("alike") for _ in range(3)] == [True, True, False]
