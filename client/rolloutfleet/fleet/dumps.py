"""What stale sessions left, in a fleet's folders: listed and read."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import BinaryIO, Final

from rolloutfleet.fleet.exceptions import BadArgument, FleetError, Unreachable
from rolloutfleet.fleet.proxies import Proxies, owner_of
from rolloutfleet.wire import DumpList, DumpState, ListedDump

PAGE: Final = 500


async def listed_dumps(proxies: Proxies, state: DumpState | None) -> AsyncIterator[ListedDump]:
    """Those of every proxy's folder. Raises NotEverywhere at the end, where some did not answer."""
    query: dict[str, str | int] = {"limit": PAGE} | ({"state": state} if state else {})
    async for page in proxies.pages("/dumps", DumpList, query):
        for dump in page.dumps:
            yield dump


async def fetch_dump(proxies: Proxies, name: str, into: BinaryIO) -> None:
    """Write the file there as it comes: of the proxy that made it, or any other that has it.

    Raises BadArgument, Refused, Unreachable; OSError where it can't be written.
    """
    if "/" in name:
        raise BadArgument("name", f"{name[:80]!r} is not a valid dump name")
    ordinals = await proxies.ordinals()
    failure: FleetError = Unreachable("no proxy is known")
    for at, ordinal in enumerate(sorted(ordinals, key=lambda ordinal: ordinal != owner_of(name))):
        try:
            async with aclosing(proxies.pieces(ordinal, f"/dumps/{name}")) as pieces:
                async for piece in pieces:
                    into.write(piece)
        except FleetError as error:
            into.seek(0)
            into.truncate()
            failure = error if at == 0 else failure
        else:
            return
    raise failure
