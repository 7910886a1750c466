"""The made-up source of the page's deadlines has all that the pages show."""

import asyncio
from collections.abc import Awaitable

from tests.timing.client.made_up import MadeUp

from rolloutfleet.inspect import pages


def test_its_pages_are_made() -> None:
    source = MadeUp(sessions=8)

    async def made() -> list[bytes]:
        wanted: list[Awaitable[bytes]] = [
            pages.fleet_page(source),
            pages.sessions_page(source),
            pages.session_page(source, "made-0"),
        ]
        return [await each for each in wanted]

    assert all(b"</html>" in each for each in asyncio.run(made()))
