"""`make quickstart`: agents through a whole local fleet, a proxy killed on the way, nothing lost.

Starts what fleet.yaml describes (two proxies, the real SGLang gateway, two simulated engines), runs some
dozens of agents with the stock OpenAI SDK, kills a proxy in the middle, rewards, exports and acknowledges,
and compares what the agents saw with what the fleet kept. One group is taken by nobody: it becomes files,
of which a conversation is shown, and that stay to be looked at. Exit status 1 where any check fails.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.quickstart import checks, ending
from examples.quickstart.agents import REQUESTS, Agent
from examples.quickstart.checks import Check, Taken
from examples.quickstart.record import Record
from examples.quickstart.trainer import Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tokenizers import Tokenizer

from rolloutfleet.specfile import load_fleet
from rolloutfleet_engine import model_path
from rolloutfleet_operator.local import ChildEvent, LocalFleet, LocalFleetError, Phase

RESOURCE = Path(__file__).with_name("fleet.yaml")
GROUP = 3
KEPT = Path(".rolloutfleet") / "quickstart-sessions"
"""Where the sessions that nobody took are left."""
KILL_AFTER = 0.35
"""The share of the users' requests that are answered when a proxy is killed."""

console = Console(highlight=False)


@dataclass
class Run:
    """What the run has gathered."""

    record: Record = field(default_factory=Record)
    sessions: dict[str, Agent] = field(default_factory=dict)
    killed: dict[str, Any] | None = None
    """The entry of fleet.json for the proxy that was killed, as it was then."""
    bereft: list[Agent] = field(default_factory=list)
    """Agents whose proxy was killed while they were at work."""
    answers_at_kill: int = 0
    turns: dict[str, dict[str, Any]] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)
    tokens: int = 0
    left: str = ""
    """The group that nobody takes in the end."""
    turns_left: int = 0
    row: dict[str, Any] = field(default_factory=dict)
    """A training row of that group."""
    audits_before: list[dict[str, Any]] = field(default_factory=list)
    audits: list[dict[str, Any]] = field(default_factory=list)
    stats: list[dict[str, Any]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


def main() -> int:
    asked = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="rolloutfleet-quickstart-"))
    try:
        run = asyncio.run(_run(folder, groups=max(2, asked.agents // GROUP)))
    except LocalFleetError as error:
        console.print(f"[red]{error}[/]\nlogs: {folder / 'logs'}")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    _show(run)
    if not all(check.ok for check in run.checks):
        console.print(f"\n[red]A check failed.[/] Stores and logs are kept in {folder}")
        return 1
    files = ending.keep(folder, KEPT)
    shutil.rmtree(folder, ignore_errors=True)
    ending.show_conversation(console, files, run.row)
    ending.show_row(console, run.row)
    _show_next(files)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make quickstart", description=__doc__)
    parser.add_argument("--agents", type=int, default=36, help="how many agents run at once (default 36)")
    return parser.parse_args()


async def _run(folder: Path, *, groups: int) -> Run:
    run = Run()
    async with _fleet(folder) as fleet, Trainer(fleet.whereabouts()) as trainer:
        for index in range(groups):
            group = await trainer.start_group(f"trip-{index}", GROUP)
            run.left = group["group_id"]
            for started in group["sessions"]:
                _add_agent(run, started)
        await _run_agents(run, fleet)
        await _gather(run, trainer)
        await _reward_and_take(run, trainer)
        run.checks = _judge(run, await trainer.engine_log(), fleet)
    return run


@contextlib.asynccontextmanager
async def _fleet(folder: Path) -> AsyncIterator[LocalFleet]:
    """The fleet of fleet.yaml; what happens to its processes is said line by line."""
    console.print(f"[bold]rolloutfleet up {os.path.relpath(RESOURCE)}[/]")

    def report(event: ChildEvent) -> None:
        worth_a_line = event.again or event.phase in (Phase.READY, Phase.ENDED)
        if worth_a_line and event.text not in ("stopping", "stopped"):
            console.print(f"  {event.name}: {event.text}")

    fleet = LocalFleet(load_fleet(RESOURCE), state_dir=folder, beside=RESOURCE.parent, report=report)
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.stop()


def _add_agent(run: Run, started: dict[str, Any]) -> None:
    run.sessions[started["session_id"]] = Agent(
        number=len(run.sessions),
        session_id=started["session_id"],
        base_url=started["base_url"],
        api_key=started["api_key"],
        record=run.record,
        progress=lambda: None,
    )


async def _run_agents(run: Run, fleet: LocalFleet) -> None:
    """All agents at once, and a SIGKILL for one proxy when a good part of the work is done."""
    agents = list(run.sessions.values())
    total = len(agents) * len(REQUESTS)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests answered"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task(f"{len(agents)} agents", total=total)

        def answered() -> None:
            progress.advance(bar)
            if run.killed is None and progress.tasks[0].completed >= total * KILL_AFTER:
                _kill_a_proxy(run, fleet)

        for agent in agents:
            agent.progress = answered
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run())


def _kill_a_proxy(run: Run, fleet: LocalFleet) -> None:
    """The one with most agents at work; those at the other never notice."""

    def at_work(proxy: dict[str, Any]) -> list[Agent]:
        here = (agent for agent in run.sessions.values() if agent.base_url.startswith(f"{proxy['url']}/"))
        return [agent for agent in here if not agent.done]

    run.killed = max(fleet.whereabouts()["proxies"], key=lambda proxy: len(at_work(proxy)))
    run.bereft = at_work(run.killed)
    run.answers_at_kill = len(run.record.answers)
    console.print(
        f"  [bold]kill -9 {run.killed['pid']}[/] (proxy-{run.killed['ordinal']}, {len(run.bereft)} agents at work)"
    )
    os.kill(run.killed["pid"], signal.SIGKILL)


async def _gather(run: Run, trainer: Trainer) -> None:
    for session_id in run.sessions:
        for turn in await trainer.turns(session_id):
            run.turns[turn["turn_id"]] = turn
    run.tokens = sum(turn["completion_tokens"] for turn in run.turns.values())
    run.audits_before = await trainer.audits()


async def _reward_and_take(run: Run, trainer: Trainer) -> None:
    """Reward and close each session, look at all trajectories and give them back, then take all but one group's."""
    for index, session_id in enumerate(run.sessions):
        await trainer.reward(session_id, index % 3 / 2)
        await trainer.close(session_id)
    looked_at = [taken async for taken in trainer.exports("individual")]
    run.taken = checks.taken_turns(looked_at)
    for taken in looked_at:
        await trainer.release(taken["lease_id"])
    left = await trainer.group(run.left)
    trained = []
    async for taken in trainer.exports("concat"):
        trained.append(taken)
        await trainer.acknowledge(taken["lease_id"])
    await trainer.release(left["lease_id"])
    await trainer.dump_the_rest()
    run.checks.append(
        checks.count(
            "trajectories given back, and exported again under the same id",
            (each in _trajectory_ids(looked_at) for each in _trajectory_ids([left, *trained])),
        )
    )
    run.row = ending.row_of(left)
    run.turns_left = sum(len(trajectory["turns"]) for trajectory in left["trajectories"])
    run.audits, run.stats = await trainer.audits(), await trainer.stats()


def _trajectory_ids(exports: Sequence[dict[str, Any]]) -> set[str]:
    return {trajectory["trajectory_id"] for export in exports for trajectory in export["trajectories"]}


def _judge(run: Run, engine_log: list[dict[str, Any]], fleet: LocalFleet) -> list[Check]:
    record = run.record
    acknowledged, dumped = (sum(audit["turns"][term] for audit in run.audits) for term in ("acknowledged", "dumped"))
    return [
        checks.count("killed proxies that came back on their address", [_is_back(run.killed, fleet)]),
        checks.count("agents of that proxy that finished all the same", (agent.done for agent in run.bereft)),
        checks.answers_are_kept(record, run.turns),
        checks.turns_were_answers(record, run.turns),
        checks.follow_ups_extend(record, run.turns),
        checks.prefixes_hold(run.taken),
        checks.tokens_are_the_engines(run.taken, engine_log),
        checks.answers_are_exported(record, run.taken),
        *run.checks,
        Check("turns that the trainer took and acknowledged", acknowledged, len(run.turns) - run.turns_left),
        Check("turns that nobody took, kept in files", dumped, run.turns_left),
        checks.sums_are_equal(run.audits_before, "sums that add up, before the export"),
        checks.sums_are_equal(run.audits, "sums that add up, at the end"),
    ]


def _is_back(killed: dict[str, Any] | None, fleet: LocalFleet) -> bool:
    now = {proxy["ordinal"]: proxy for proxy in fleet.whereabouts()["proxies"]}
    if killed is None:
        return False
    proxy = now[killed["ordinal"]]
    return bool(proxy["pid"] != killed["pid"] and proxy["url"] == killed["url"])


def _show(run: Run) -> None:
    streamed = sum(answer.streamed for answer in run.record.answers)
    memory = ", ".join(f"{figures['rss_bytes'] / 2**20:.0f} MiB" for figures in run.stats)
    figures = Table(box=None, show_header=False, pad_edge=False, title="What was captured", title_justify="left")
    figures.add_column()
    figures.add_column()
    for name, value in (
        ("agent runs (sessions)", f"{len(run.sessions)} ({_placement(run)})"),
        ("model calls (turns)", f"{len(run.turns)} ({streamed} streamed; {run.answers_at_kill} before the kill)"),
        ("tokens that the model sampled", f"{run.tokens:,}"),
        ("text that would tokenise otherwise", f"in {_tokenised_otherwise(run)} of {len(run.turns)} turns"),
        ("conversations that forked", _forks(run)),
        ("calls that agents had to repeat", str(run.record.attempts_that_failed)),
        ("memory of each proxy", memory),
        ("where all turns are now", _sums([audit["turns"] for audit in run.audits])),
        ("where all sessions are now", _sums([audit["sessions"] for audit in run.audits])),
    ):
        figures.add_row(name, value)
    console.print()
    console.print(figures)
    table = Table(box=None, pad_edge=False, title="\nWhat was checked", title_justify="left", header_style="bold")
    table.add_column("")
    table.add_column("check")
    table.add_column("made", justify="right")
    table.add_column("passed", justify="right")
    for check in run.checks:
        table.add_row("[green]✓[/]" if check.ok else "[red]✗[/]", check.name, str(check.made), str(check.passed))
    console.print(table)


def _placement(run: Run) -> str:
    """How many sessions each proxy was given."""
    proxies = Counter(agent.base_url.split("/sessions/")[0] for agent in run.sessions.values())
    return " + ".join(str(count) for _, count in sorted(proxies.items())) + " on the proxies"


def _forks(run: Run) -> str:
    """How many branches there are beyond one a session."""
    more = checks.branches(run.turns.values()) - len(run.sessions)
    return f"{more} times (an agent rewrote its history)" if more else "never"


def _tokenised_otherwise(run: Run) -> int:
    """How many outputs a tokenizer would write with other ids; what capture by text would have trained on."""
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    outputs = (turn["output_ids"] for turn in run.turns.values())
    return sum(
        tokenizer.encode(tokenizer.decode(ids, skip_special_tokens=False), add_special_tokens=False).ids != ids
        for ids in outputs
    )


def _sums(ledgers: list[dict[str, Any]]) -> str:
    """`294 created = 270 acknowledged + 24 dumped`"""

    def terms(names: Sequence[str]) -> str:
        totals = {name: sum(ledger[name] for ledger in ledgers) for name in names}
        return " + ".join(f"{total} {name}" for name, total in totals.items() if total)

    right = [terms(("live", "leased", "acknowledged", "dumped"))]
    discarded = sum(sum(ledger["discarded"].values()) for ledger in ledgers)
    right += [f"{discarded} discarded"] if discarded else []
    return f"{terms(('created', 'imported'))} = {' + '.join(right)}"


def _show_next(files: Sequence[Path]) -> None:
    up, agents, kept, model, dump = (
        shlex.quote(os.path.relpath(file))
        for file in (RESOURCE, RESOURCE.with_name("agents.py"), KEPT, model_path(), files[0])
    )
    steps = {
        f"rolloutfleet inspect --dumps {kept} --tokenizer {model}": "all that these sessions did, in a browser",
        f"rolloutfleet show {dump} --tokens --tokenizer {model}": "one of them, here",
        f"rolloutfleet up {up}": "the same fleet, until Ctrl-C",
        "rolloutfleet status": "in a second terminal; then: top, sessions, show, export",
        f"less {agents}": "an agent, with the stock OpenAI SDK",
    }
    console.print(
        f"\n[bold]Next[/] (after: source .venv/bin/activate)\n  What no trainer took was dumped, and is kept in {kept}",
        soft_wrap=True,
    )
    for command, meaning in steps.items():
        console.print(f"  {command}\n      [dim]{meaning}[/]", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
