"""News reach every open tab; one that takes nothing is told to read again, and delays nobody."""

import asyncio

from rolloutfleet.inspect.tabs import MOST_TABS, MOST_WAITING, RESET, Tabs


async def test_every_tab_is_told_everything_in_order() -> None:
    tabs = Tabs()
    with tabs.opened() as one, tabs.opened() as other:
        tabs.tell("commit", {"turn_id": "a\n\nevent: x"})
        tabs.tell("sessions", {})
        expected = b'event: commit\ndata: {"turn_id": "a\\n\\nevent: x"}\n\nevent: sessions\ndata: {}\n\n'
        assert await one.take(1) == expected == await other.take(1)
        assert await one.take(0) == b""


async def test_a_tab_that_takes_nothing_loses_what_waits_and_is_told_so() -> None:
    tabs = Tabs()
    with tabs.opened() as slow, tabs.opened() as quick:
        for number in range(MOST_WAITING + 1):
            tabs.tell("commit", {"number": number})
            assert await quick.take(1) == f'event: commit\ndata: {{"number": {number}}}\n\n'.encode()
        tabs.tell("commit", {"number": "last"})
        assert await slow.take(1) == RESET + b'event: commit\ndata: {"number": "last"}\n\n'


async def test_a_tab_that_waits_is_woken_by_news_and_by_the_end() -> None:
    tabs = Tabs()
    with tabs.opened() as tab:
        taking = asyncio.create_task(tab.take(60))
        await asyncio.sleep(0)
        tabs.tell("reset", {})
        assert await taking == RESET and not tab.closed
        taking = asyncio.create_task(tab.take(60))
        await asyncio.sleep(0)
        tabs.close()
        assert await taking == b"" and tab.closed


async def test_there_are_so_many_tabs_and_one_that_closes_makes_room() -> None:
    tabs = Tabs()
    opened = [tabs.opened() for _ in range(MOST_TABS)]
    for each in opened:
        each.__enter__()
    assert tabs.full
    with tabs.opened() as further:
        assert further.closed
    opened[0].__exit__(None, None, None)
    assert not tabs.full
    with tabs.opened() as another:
        assert tabs.full and not another.closed
