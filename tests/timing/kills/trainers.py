"""Trainers that take what agents made, and go on through every kill: by plain HTTP, or by the client library.

They export and acknowledge a session at a time, and acknowledge twice. Now and then one forgets what it had leased
(its lease expires) or gives it back (the library's release): the same must come again. What was dumped is imported.
"""

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.timing.kills.asking import AGAIN, Asking, code_of
from tests.timing.kills.journal import ACK, EXPORT, IMPORT, RELEASE

from rolloutfleet.dumps.files import parse_dump_name
from rolloutfleet.errors import ALREADY_IMPORTED
from rolloutfleet.fleet import AsyncFleet, LeaseLost, NotNow, Trajectory, Unreachable

LEASE_SECONDS = 20.0
FORGOTTEN_LEASE_SECONDS = 1.0
FORGETS = 0.15
"""The share of sessions that a trainer leases and forgets first, or gives back."""
BY_LIBRARY = 0.4
"""The share of sessions that are taken by the library."""
LOOK = 0.3
"""Seconds between two looks at what can be had."""

Json = Any


class Trainers:
    """One for each proxy, and what they share."""

    def __init__(self, asking: Asking, library: AsyncFleet, *, proxies: int, seed: int) -> None:
        self._asking = asking
        self._journal = asking.journal
        self._library = library
        self._seed = seed
        self._handed: Sequence[asyncio.Queue[str]] = [asyncio.Queue() for _ in range(proxies)]
        """Sessions that can be exported, by proxy."""
        self._exports = itertools.count()

    def hand_over(self, session: str, ordinal: int) -> None:
        """It can be exported."""
        self._handed[ordinal].put_nowait(session)

    async def train(self, ordinal: int) -> None:
        """Take what is handed over, for ever."""
        random = Random(f"{self._seed} trainer {ordinal}")
        async with asyncio.TaskGroup() as tasks:
            while True:
                session = await self._handed[ordinal].get()
                take = self._take_by_library if random.random() < BY_LIBRARY else self._take
                tasks.create_task(take(session, ordinal, forgets=random.random() < FORGETS))

    # By plain HTTP

    async def _take(self, session: str, ordinal: int, *, forgets: bool) -> None:
        """Export and acknowledge a session; or leave its lease to expire, and do so later."""
        forgotten: list[Json] = []
        if forgets:
            _, forgotten = await self._export(session, ordinal, lease_seconds=FORGOTTEN_LEASE_SECONDS)
        lease, trajectories = await self._export(session, ordinal, lease_seconds=LEASE_SECONDS)
        self._journal.check_came_again(names_of(forgotten), names_of(trajectories))
        if lease is None:
            return
        for _ in range(2):
            reply = await self._asking.until_told(ACK, ordinal, f"/leases/{lease}/ack", {})
            if reply.is_success:
                self._journal.acknowledged(reply.json()["acknowledged"])
            else:
                # Its time was up before: whoever has it now acknowledges it.
                self.hand_over(session, ordinal)
                return
        if names_of(trajectories) != set(reply.json()["acknowledged"]):
            self._journal.contradict(f"lease {lease} holds something else than was exported with it")
        await self._export(session, ordinal, lease_seconds=LEASE_SECONDS, tries=1)

    async def _export(
        self, session: str, ordinal: int, *, lease_seconds: float, tries: int = 100
    ) -> tuple[str | None, list[Json]]:
        """(lease, trajectories) of a session, once it can be had; none where it is gone."""
        for _ in range(tries):
            body = {"session_ids": [session], "lease_seconds": lease_seconds}
            answer = await self._asking.ask(EXPORT, ordinal, "/export", body, key=f"export {next(self._exports)}")
            self._journal.exported(answer["trajectories"])
            if answer["lease_id"] is not None:
                return answer["lease_id"], answer["trajectories"]
            if answer["sessions"][0]["status"] in ("gone", "unknown"):
                break
            await asyncio.sleep(LOOK)
        return None, []

    # By the library

    async def _take_by_library(self, session: str, ordinal: int, *, forgets: bool) -> None:
        """The same; what is not to be kept yet is given back."""
        given_back: list[Trajectory] = []
        if forgets:
            given_back = await self._export_by_library(session, ordinal)
            await self._give_back(given_back, ordinal)
        trajectories = await self._export_by_library(session, ordinal)
        self._journal.check_came_again(ids_of(given_back), ids_of(trajectories))
        try:
            for _ in range(2):
                await self._acknowledge(trajectories, ordinal)
        except LeaseLost:
            self.hand_over(session, ordinal)

    async def _export_by_library(self, session: str, ordinal: int) -> list[Trajectory]:
        """What a session left, once it can be had; none where it is gone."""
        while True:
            with self._journal.asking(EXPORT, ordinal):
                found, status = await self._exported_by_library(session)
            self._journal.exported([shown(each) for each in found], by_library=True)
            if found or status in ("gone", "unknown"):
                return found
            self._journal.broke_off(EXPORT)
            await asyncio.sleep(AGAIN)

    async def _exported_by_library(self, session: str) -> tuple[list[Trajectory], str | None]:
        wanted = self._library.export(session_ids=[session], wait=True, lease_seconds=LEASE_SECONDS, on_exit="keep")
        with contextlib.suppress(Unreachable, NotNow):
            async with wanted as export:
                return [trajectory async for trajectory in export], export.statuses.get(session)
        return [], None

    async def _acknowledge(self, trajectories: list[Trajectory], ordinal: int) -> None:
        """Until a call of it was answered: what the library goes on saying by itself is no answer yet."""
        names = ids_of(trajectories)
        while names:
            with self._journal.asking(ACK, ordinal):
                await self._library.acknowledge(trajectories)
                if not names & self._library.unheard:
                    self._journal.acknowledged(sorted(names), by_library=True)
                    return
                while names & self._library.unheard:
                    await asyncio.sleep(AGAIN)
            self._journal.broke_off(ACK)

    async def _give_back(self, trajectories: list[Trajectory], ordinal: int) -> None:
        with self._journal.asking(RELEASE, ordinal):
            await self._library.release(trajectories)
        self._journal.counts[RELEASE] += 1

    # Dumps

    async def import_dumps(self, ordinal: int) -> None:
        """Take in what was dumped, a session at a time, for ever."""
        while True:
            for session, names in (await self._ready_dumps(ordinal)).items():
                reply = await self._asking.until_told(IMPORT, ordinal, "/dumps/import", {"names": names})
                # Otherwise it is still being dumped, or the half of it was taken in; the next look tells.
                if reply.is_success or code_of(reply) == ALREADY_IMPORTED:
                    self._journal.imports(names)
                    self.hand_over(session, ordinal)
            await asyncio.sleep(LOOK)

    async def _ready_dumps(self, ordinal: int) -> dict[str, list[str]]:
        reply = await self._asking.until_told("", ordinal, "/dumps?state=ready&limit=1000", method="GET")
        found: dict[str, list[str]] = defaultdict(list)
        for dump in reply.json()["dumps"]:
            name = parse_dump_name(dump["name"])
            assert name is not None
            found[name.session_id].append(dump["name"])
        return found

    async def until_nothing_is_left(self, ordinal: int) -> None:
        """Return when every turn of a proxy was exported and acknowledged."""
        while await self._holds(ordinal):
            await asyncio.sleep(LOOK)

    async def _holds(self, ordinal: int) -> bool:
        """Whether a proxy still has sessions, turns or dumps to take in, or somebody waits for it.

        A session may go from a dump into the store, or back, between two looks: so dumps are looked for both before
        and after the audit.
        """
        return await self._may_import(ordinal) or await self._has_rows(ordinal) or await self._may_import(ordinal)

    async def _may_import(self, ordinal: int) -> bool:
        return bool(await self._ready_dumps(ordinal) or self._journal.waiting(ordinal))

    async def _has_rows(self, ordinal: int) -> bool:
        audit = (await self._asking.until_told("", ordinal, "/audit", method="GET")).json()
        return bool(audit["turns"]["live"] or audit["turns"]["leased"] or audit["sessions"]["live"])


def names_of(trajectories: list[Json]) -> set[str]:
    """Their ids."""
    return {trajectory["trajectory_id"] for trajectory in trajectories}


def ids_of(trajectories: list[Trajectory]) -> set[str]:
    """The same of the library's."""
    return {trajectory.trajectory_id for trajectory in trajectories}


def shown(trajectory: Trajectory) -> Json:
    """As plain HTTP brings it, as far as the journal looks at it."""
    turns = [turn.model_dump(mode="json") for turn in trajectory.turns]
    return {"trajectory_id": trajectory.trajectory_id, "session_id": trajectory.session_id, "turns": turns}
