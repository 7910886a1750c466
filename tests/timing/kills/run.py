"""One leg of a run: a fleet, its clients, the killer, and the verdict."""

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.timing.kills.asking import Unexpected
from tests.timing.kills.clients import at_work
from tests.timing.kills.journal import Journal
from tests.timing.kills.killer import Killer
from tests.timing.kills.kinds import AT_WORK, Kill, Kind
from tests.timing.kills.results import Json, summary
from tests.timing.kills.targets import NotComingBack, Targets, targets
from tests.timing.kills.verdict import check_the_end

PROXIES = 4
JOURNAL = "journal.json"
"""What is left beside the stores and logs of a leg that showed a contradiction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a leg is to do."""

    kills: int
    seed: int
    minutes: float
    proxies: int = PROXIES
    kinds: Sequence[Kind] = tuple(Kind)
    at_work: Sequence[str | None] = AT_WORK
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kills: list[Kill]
    contradictions: list[str]
    record: Json


def run(
    asked: Asked,
    folder: Path,
    *,
    bytecode: Path,
    say: Callable[[str], None] = lambda line: None,
    killed: Callable[[Kill], object] = lambda kill: None,
) -> Outcome:
    """Kill as asked in a fleet whose files are in `folder`, and judge what became of it.

    The kills end when there are so many, the time is over or something can't be; the rest takes a minute or two.
    """
    began = time.monotonic()
    journal = Journal()
    audits = 0
    with targets(folder, proxies=asked.proxies, bytecode=bytecode, fault=asked.fault) as running:
        say(f"a fleet of {len(running.proxies)} proxies is up, in {folder}")
        killer = Killer(running, journal, seed=asked.seed, at_work=asked.at_work, killed=killed)
        try:
            asyncio.run(_kill(asked, running, killer, journal, until=began + 60 * asked.minutes, say=say))
        except* (Unexpected, NotComingBack, TimeoutError, subprocess.TimeoutExpired) as wrong:
            for error in leaves(wrong):
                journal.contradict(f"{type(error).__name__}: {error}")
        if not journal.contradictions:
            audits = check_the_end(running, journal)
    if journal.contradictions:
        (folder / JOURNAL).write_text(json.dumps(journal.as_json(), indent=1), encoding="utf-8")
    kept = summary(
        killer.kills, killer.misses, journal, seed=asked.seed, audits=audits, seconds=time.monotonic() - began
    )
    return Outcome(kills=killer.kills, contradictions=journal.contradictions, record=kept)


async def _kill(
    asked: Asked, running: Targets, killer: Killer, journal: Journal, *, until: float, say: Callable[[str], None]
) -> None:
    async with at_work([each.proxy for each in running.proxies], journal, seed=asked.seed):
        await killer.run(asked.kills, kinds=asked.kinds, until=until)
        say(f"{len(killer.kills)} kills; now everything is exported, acknowledged and compared")


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """What a group of exceptions holds, and groups in it."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each
