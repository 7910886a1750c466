"""Long steps, few in a round of the event loop."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.capture.pacing import Pace


def steps_taken(asked: int, a_round: int, leave: frozenset[int] = frozenset()) -> list[tuple[int, int]]:
    """Each step that was taken, in order, with the round of the loop that it fell into. All ask at once, and some
    leave while they wait."""
    taken: list[tuple[int, int]] = []
    rounds = 0

    async def play() -> None:
        pace, loop = Pace(a_round), asyncio.get_running_loop()

        def count() -> None:
            nonlocal rounds
            rounds += 1
            loop.call_soon(count)

        async def step(number: int) -> None:
            await pace.turn()
            taken.append((number, rounds))

        count()
        tasks = [asyncio.create_task(step(number)) for number in range(asked)]
        await asyncio.sleep(0)
        for number in leave:
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())
    return taken


@given(st.integers(1, 100), st.integers(1, 30), st.frozensets(st.integers(0, 99)))
def test_a_crowd_is_served_in_order_a_few_a_round_and_nobody_is_left_out(
    asked: int, a_round: int, leave: frozenset[int]
) -> None:
    leave = frozenset(number for number in leave if a_round <= number < asked)
    taken = steps_taken(asked, a_round, leave)
    assert [number for number, _ in taken] == [number for number in range(asked) if number not in leave]
    assert max(Counter(at for _, at in taken).values()) <= a_round
    rounds = -(-len(taken) // a_round)
    assert taken[-1][1] - taken[0][1] <= rounds, "who has left costs no turn"


def test_alone_nobody_waits() -> None:
    async def play() -> None:
        pace = Pace()
        for _ in range(3):
            with pytest.raises(StopIteration):
                pace.turn().send(None)
            await asyncio.sleep(0)

    asyncio.run(play())
