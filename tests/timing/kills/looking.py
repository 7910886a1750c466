"""After a kill: the sums of a proxy, and whether what was answered of sessions under way is there."""

import contextlib
from typing import Any

import httpx
from tests.timing.kills.journal import Journal, Talk
from tests.timing.kills.targets import PLAIN, ProxyTarget

TIMEOUT = 30.0


async def look_at(proxy: ProxyTarget, journal: Journal) -> None:
    """Compare a proxy that serves again with what its clients were told. One that does not answer is left out."""
    headers = {"authorization": f"Bearer {proxy.proxy.key}"}
    async with httpx.AsyncClient(base_url=proxy.proxy.url, headers=headers, timeout=TIMEOUT, verify=PLAIN) as client:
        with contextlib.suppress(httpx.TransportError):
            await _look_at_sums(client, proxy.ordinal, journal)
            for talk in list(journal.talks.values()):
                if talk.ordinal == proxy.ordinal and talk.answers and not talk.over:
                    await _look_at_talk(client, talk, journal)


async def _look_at_sums(client: httpx.AsyncClient, ordinal: int, journal: Journal) -> None:
    known = journal.turns_acknowledged(ordinal)
    audit = await _got(client, "/audit")
    if audit is None:
        return
    if not audit["balanced"]:
        journal.contradict(f"the audit of proxy {ordinal} is not balanced: {audit}")
    counted = audit["turns"]["acknowledged"]
    if counted < known:
        journal.contradict(f"proxy {ordinal} answered the acknowledgement of {known} turns, and counts {counted}")


async def _look_at_talk(client: httpx.AsyncClient, talk: Talk, journal: Journal) -> None:
    answered = [answer.turn_id for answer in talk.answers]
    shown = await _got(client, f"/sessions/{talk.session_id}/turns?limit=1000")
    there = {turn["turn_id"] for turn in shown["turns"]} if shown else set(answered)
    lost = [name for name in answered if name not in there]
    if lost and await _is_open(client, talk):
        journal.lost.update(lost)
        journal.contradict(f"{lost} of {talk.session_id} was answered, and is lost")


async def _is_open(client: httpx.AsyncClient, talk: Talk) -> bool:
    """Whether nothing of it can have been dumped or exported, which never opens a session again."""
    shown = await _got(client, f"/sessions/{talk.session_id}")
    return shown is not None and shown["state"] == "open"


async def _got(client: httpx.AsyncClient, path: str) -> Any:
    reply = await client.get(path)
    return reply.json() if reply.is_success else None
