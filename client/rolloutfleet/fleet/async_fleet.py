"""`AsyncFleet`: a fleet as a trainer's asyncio code has it.

docs/trainer.md shows how it is used. `Fleet` is the same for code that blocks; it runs one of these.
"""

import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, BinaryIO, Final, Literal, Self, Unpack

from rolloutfleet import wire
from rolloutfleet.fleet import annotating, dumps
from rolloutfleet.fleet.admission import Admission, StalenessFilter
from rolloutfleet.fleet.arguments import FleetOptions, Named, check_choice, check_names, name_of, valid
from rolloutfleet.fleet.base import ExportArguments, ExportTerms, FleetBase, Options, SessionOptions
from rolloutfleet.fleet.budget_slots import BudgetSlots
from rolloutfleet.fleet.ending import ending_of
from rolloutfleet.fleet.events import AsyncEvents
from rolloutfleet.fleet.exceptions import BadArgument, FleetError, Gone, NotKnown
from rolloutfleet.fleet.exporting import AsyncExport
from rolloutfleet.fleet.leases import ExportFile, Format, Leases, by_lease, export_file
from rolloutfleet.fleet.prefetching import ExportOptions
from rolloutfleet.fleet.proxies import FLEET, Proxies, each, new_key, owner_of, raise_first
from rolloutfleet.fleet.rollouts.agents import Agent
from rolloutfleet.fleet.rollouts.rollout import AsyncRollout, RolloutOptions, plan_of
from rolloutfleet.fleet.sessions import (
    AsyncGroup,
    AsyncSession,
    Chosen,
    ListSessions,
    OnError,
    list_sessions,
    list_turns,
    read_conversation,
)
from rolloutfleet.fleet.trajectories import Leased, Trajectory
from rolloutfleet.fleet.transport import Answer, read_answer
from rolloutfleet.fleet.waiting import Waiting
from rolloutfleet.fleet.weights import AsyncWeightUpdate, FleetWeights
from rolloutfleet.fleet.whereabouts import Whereabouts

log = logging.getLogger("rolloutfleet.fleet")

CLOSING_TIMEOUT: Final = 5.0
STATS_TIMEOUT: Final = 10.0
"""Seconds for one proxy's answer of all figures. Whoever looks on sees old ones until another proxy is asked."""
IMPORT_TIMEOUT: Final = 300.0
"""Seconds for the answer to an import of dumps."""


class AsyncFleet(FleetBase):
    """A fleet. One event loop's; `async with` closes it.

    Every method raises FleetError's kinds: BadArgument before anything is asked, Refused for an error that a proxy
    answers with, Unreachable where none answers.
    """

    def __init__(self, where: Whereabouts, **options: Unpack[Options]) -> None:
        given = valid(FleetOptions, options)
        self.whereabouts = where
        self.staleness = given.staleness
        self._closed = False
        self._in_blocks: dict[str, wire.CloseSession | None] = {}
        """Sessions whose `with` block is open: what their outcome was said to be meanwhile."""
        self._failures: list[str | None] = []
        """Of the newest episodes of rollouts why they failed; None where they did not."""
        self._waiting = Waiting(given.progress)
        self._proxies = Proxies(where, patience=given.patience)
        self._weights = FleetWeights(self._proxies, self._waiting)
        self._admission: Admission | None = None
        if given.staleness is not None:
            self._admission = Admission(given.staleness, self._proxies, self._weights, self._waiting, given.lost_after)
        self._slots = BudgetSlots(None) if self._admission is None else self._admission.slots
        self._filter = StalenessFilter(self.staleness, self._slots, self._weights, given.too_old)
        self._leases = Leases(self._proxies, self._filter)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Say what is still owed, for a few seconds, and close all connections. Sessions go on."""
        if self._closed:
            return
        self._closed = True
        if self._admission is not None:
            await self._admission.close()
        left = await self._proxies.outbox.flush(CLOSING_TIMEOUT)
        if left:
            log.warning("never heard: %s", "; ".join(left))
        await self._proxies.close()

    # The fleet

    async def proxies(self) -> list[wire.Proxy]:
        """Ordinal, address and state of every proxy, now."""
        await self._proxies.refresh(now=True)
        return [self._proxies.known[ordinal] for ordinal in sorted(self._proxies.known)]

    async def audit(self) -> wire.Audit:
        """What became of everything, over all proxies; `failed` names those that did not answer."""
        return await self._proxies.call("GET", "/audit", wire.Audit, query=FLEET)

    async def stats(self) -> wire.FleetStats:
        """Each proxy's figures; `failed` names those that did not answer."""
        return await self._proxies.call("GET", "/stats", wire.FleetStats, query=FLEET, timeout=STATS_TIMEOUT)

    # Sessions

    async def start_session(self, task_id: str | None = None, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Start a session, once the staleness budget has room; wait no longer than `timeout` for that.

        `stale_after` is in seconds, and so is `await_reward`: what is closed without a reward is not exported before it
        has one, or has waited for so long. With `train=False` it is an evaluation, which is never exported and takes no
        part in the budget. With `replaces` it takes the place of a session, which is discarded, in its group and in the
        budget: `task_id` and `train` are that one's. `on_error` is what becomes of it where its `with` block ends with
        an exception: `close` leaves what it has to be exported, with an outcome that says so, `delete` discards it.
        `sampling` holds `defaults` and `overrides` for what its agent asks for (`wire.SessionSampling`); the
        `max_tokens` there are those of an answer, and the one beside it the session's. Raises TookTooLong.
        """
        group = await self.start_group(1, task_id, **options)
        return group.sessions[0]

    async def start_group(
        self,
        size: int,
        task_id: str | None = None,
        *,
        quorum: int | None = None,
        deadline: float | None = None,
        **options: Unpack[SessionOptions],
    ) -> AsyncGroup:
        """Start sessions for one task, which are exported together, once the staleness budget has room for all of them.

        Once `quorum` of them have ended and `deadline` seconds since their start are over, the rest are closed as
        `aborted`; that takes both. The other options are those of `start_session`. Raises TookTooLong.
        """
        check_names("start_group", options, SessionOptions)
        terms: dict[str, Any] = {**options}
        on_error, timeout = terms.pop("on_error", "close"), terms.pop("timeout", None)
        replaces = terms.pop("replaces", None)
        replaced = None if replaces is None else name_of(replaces)
        limits = {"turns": terms.pop("max_turns", None), "tokens": terms.pop("max_tokens", None)}
        group = None if quorum is deadline is None else {"quorum": quorum, "deadline": deadline}
        terms |= {"task_id": task_id, "group_size": size, "replaces": replaced, "limits": limits, "group": group}
        asked = valid(wire.StartSessions, terms)
        check_choice("on_error", on_error, ("close", "delete"))
        self._proxies.check_open()
        admission = self._admission if asked.train and replaced is None else None
        async with nullcontext() if admission is None else admission.admitted(size, timeout=timeout):
            # A key belongs to one proxy, and where that is down another key's may be up.
            started = await self._proxies.call(
                *("POST", "/sessions", wire.StartedSessions),
                body=asked,
                key=new_key(),
                new_keys=replaced is None,
                owner=None if replaced is None else owner_of(replaced),
            )
        names, ordinal = [session.session_id for session in started.sessions], owner_of(started.group_id)
        if asked.train and replaced is not None:
            self._slots.replaced(replaced, names[0], ordinal=ordinal)
        elif asked.train:
            self._slots.started(names, ordinal=ordinal)
        sessions = tuple(
            AsyncSession(**dict(session), group_id=started.group_id, task_id=task_id, fleet=self, on_error=on_error)
            for session in started.sessions
        )
        return AsyncGroup(started.group_id, sessions)

    async def reward(
        self, session: Named, reward: float, *, turn_id: str | None = None, close: bool | None = None
    ) -> wire.Rewarded:
        """Reward a turn, the main loop's last one unless it is named; `close` makes a trajectory of all turns so far.

        By default it does where no turn is named. The session goes on either way: `close_session` ends it.
        """
        asked, name = valid(wire.GiveReward, {"reward": reward, "turn_id": turn_id, "close": close}), name_of(session)
        done = await self._of_session("POST", name, "/reward", wire.Rewarded, body=asked, key=new_key())
        self._slots.closed_trajectory(name, done.trajectory_id)
        return done

    async def close_session(
        self, session: Named, *, outcome: wire.Outcome | None = None, reason: str | None = None
    ) -> str | None:
        """End a session; returns the trajectory that was made of its open turns, None where there were none.

        Without an `outcome` it is `truncated` where its context or a limit ended its newest call, else `completed`. One
        that has ended keeps its outcome unless another is given; from the first lease on that raises Conflict.
        """
        asked, name = valid(wire.CloseSession, {"outcome": outcome, "reason": reason}), name_of(session)
        if outcome is not None and name in self._in_blocks:
            self._in_blocks[name] = asked
        return await self._close(name, asked)

    async def _close(self, name: str, asked: wire.CloseSession) -> str | None:
        done = await self._of_session("POST", name, "/close", wire.Closed, body=asked)
        if done.trajectory_id is None and self._admission is not None and self._slots.seems_empty(name):
            # Somebody else may have rewarded it, and so made a trajectory of its turns. Who waits for room asks again.
            with suppress(FleetError):
                await self._admission.poll_session(name)
        else:
            self._slots.ended(name, left=[done.trajectory_id] if done.trajectory_id else [])
        return done.trajectory_id

    async def delete(self, session: Named) -> None:
        """End a session, and discard all of it that is not leased."""
        name = name_of(session)
        with suppress(Gone):
            await self._proxies.send("DELETE", f"/sessions/{name}", owner=owner_of(name))
        self._slots.gone(name)

    async def touch(self, session: Named) -> None:
        """Keep a session from going stale."""
        await self._of_session("POST", name_of(session), "/touch", wire.Answered)

    async def status(self, session: Named) -> wire.SessionStatus:
        """The status of a session. Raises Gone, NotKnown."""
        return await self._of_session("GET", name_of(session), "", wire.SessionStatus)

    async def statuses(self, sessions: Iterable[Named]) -> dict[str, wire.SessionStatus | FleetError]:
        """Of each session what the fleet says, or the error that it answers with. Never raises for one of them."""
        names = [name_of(session) for session in sessions]
        return dict(zip(names, await each(map(self.status, names)), strict=True))

    def sessions(
        self, *, newest: bool = False, limit: int | None = None, **chosen: Unpack[Chosen]
    ) -> AsyncIterator[wire.SessionStatus]:
        """The sessions that the fleet has, whoever started them: of each proxy the oldest first, or the newest of all.

        `chosen` are those that it is asked for, `limit` is how many at most; those that ended are listed until all of
        them has been acknowledged or discarded. Raises NotEverywhere at the end where a proxy did not answer.
        """
        return list_sessions(self._proxies, valid(ListSessions, {"newest": newest, "limit": limit, **chosen}))

    def turns(self, session: Named) -> AsyncIterator[wire.Turn]:
        """A session's turns, in order of commit, with ids, log-probabilities and versions."""
        return list_turns(self._proxies, name_of(session))

    def conversation(
        self, session: Named, *, branch: str | None = None, cursor: str | None = None, outline: bool = False
    ) -> AsyncIterator[wire.Conversation]:
        """A branch of a session, page by page: messages, and each token with its text, log-probability and version.

        `branch` is the id of its last turn, the newest unless given; `cursor` a page's, or the id of the turn to begin
        at. With `outline` the turns come without messages and tokens, and those of all branches unless one is named.
        """
        return read_conversation(self._proxies, name_of(session), branch=branch, cursor=cursor, outline=outline)

    def events(self) -> AsyncEvents:
        """Turns as they are committed, at all proxies, from now on: a context manager, and an iterator within.

        It follows proxies that restart, or come and go; what was committed meanwhile comes then.
        """
        return AsyncEvents(self._proxies)

    async def _of_session(self, method: str, name: str, path: str, answer: type[Answer], **asked: Any) -> Answer:
        return await self._proxies.call(method, f"/sessions/{name}{path}", answer, owner=owner_of(name), **asked)

    async def _end(self, session_ids: Sequence[str], error: BaseException | None, on_error: OnError) -> None:
        """The end of a `with` block. An exception of the block is never hidden by one of ours."""
        as_left = wire.CloseSession() if error is None else ending_of(error)
        endings = {name: self._in_blocks.pop(name, None) or as_left for name in session_ids}
        delete = error is not None and on_error == "delete"
        try:
            raise_first(await each([self._end_one(name, None if delete else endings[name]) for name in session_ids]))
        except FleetError as problem:
            if error is None:
                raise
            log.warning("a session could not be ended: %s", problem)

    async def _end_one(self, session_id: str, ending: wire.CloseSession | None) -> None:
        """Close a session, or delete it where there is no `ending`. What does not answer is told later, and not waited
        for."""

        async def deliver() -> None:
            try:
                await (self.delete(session_id) if ending is None else self._close(session_id, ending))
            except (Gone, NotKnown):
                # Stale, lost, or deleted by its agent: it has ended.
                self._slots.gone(session_id)

        await self._proxies.outbox.deliver(f"the end of session {session_id}", deliver)

    def rollout(self, agent: Agent, tasks: Iterable[Any], **options: Unpack[RolloutOptions]) -> AsyncRollout:
        """Groups of `n` sessions (8) for each of the tasks, an agent run in each, and what they left, leased: a context
        manager, and an iterator of groups within.

        A task is anything, its id the `task_id` or `id` of a dict. The agent is `agent(session, task)`, a function,
        which runs in a thread of its own, or a coroutine function; or a `Command`. A number that it returns is the
        reward; else `reward(session, task)` is asked, where it is given, when the agent has ended. `after_each(group)`
        sees a group before its sessions are closed; it may reward them, or return a reward for each.

        At most `concurrency` agents (64) run at once, each for `timeout` seconds. What an agent raises makes its
        session `failed`, with no reward; one of `retry_on`, by default the fleet's own errors, connections that were
        refused and commands that could not be started, has it run again in a new session, `retries` times (once).
        TooManyFailures is raised once more than a share of `max_failures` (0.5) of this object's last 100 have failed,
        and 10 have ended, or at the end of a rollout where all have failed.

        Groups come as they end, with `ordered` in the order of the tasks; once `quorum` members of one have ended and
        `deadline` seconds since its start are over, without the others. `export` holds options of `export`, and the
        terms of `start_session` are given as they are: with `train=False` it is an evaluation, greedy unless `sampling`
        is given, of which nothing is exported. A block that ends well acknowledges the groups that were handed out;
        with `on_exit="keep"` they stay leased, for `acknowledge`; with `on_exit="discard"`, for evaluations of which
        rows are wanted, all its sessions are deleted. With an exception all is given back. Agents that still run are
        ended, and their sessions closed as aborted.
        """
        return AsyncRollout(self, plan_of(agent, tasks, options), self._failures)

    # Exports

    def export(self, count: int | None = None, **options: Unpack[ExportArguments]) -> AsyncExport:
        """Closed trajectories of all proxies, leased ahead: a context manager, and an iterator within.

        With `count` it waits until so many have come, and finishes the group that it is at; with `wait=False` too it
        ends when nothing more is ready. Without, it ends when no proxy has anything ready; one that does not answer is
        waited for `grace` seconds (5). `session_ids` or `group_id` name what is wanted; `wait` then waits until they
        are all exportable. `style` makes a row of each leaf (`concat`) or of each turn (`individual`), `discount` (1)
        is that of rewards. `lineages={"subagent": "context"}` trains no turn of that kind. Rows without a reward of
        their own get the session's, unless `credit="branch"`. A session without a reward whose outcome is not among
        `train` (completed, truncated) comes without a token to train. `include=["messages", "tools"]` gives rows the
        messages of their conversation and the tools that were declared, `as_="shards"` references in place of tensors.
        `page` trajectories (16) are leased at once, for `lease_seconds` (600) that are renewed, and `prefetch` pages
        (1) a proxy ahead of what is handed out. `timeout` bounds the wait for the next one.

        A block that ends well acknowledges what was handed out and gives the rest back; with an exception all is
        given back. `on_exit="keep"` leaves leased what was handed out, for `acknowledge` by whoever trains on it.
        """
        check_names("export", options, ExportArguments)
        wait = {"wait": count is not None} if options.get("wait") is None else {}
        wanted = valid(ExportOptions, _by_name(options) | {"count": count} | wait)
        if count is not None and wanted.named:
            raise BadArgument("count", "goes with neither session_ids nor group_id; keep one")
        return AsyncExport(self._proxies, self._leases, wanted, self._filter, self._weights, self._waiting)

    async def annotate(
        self,
        trajectory: Trajectory,
        /,
        *,
        row: int | None = None,
        notes: Mapping[str, str] | None = None,
        **series: Any,
    ) -> None:
        """Tell the fleet what training made of a trajectory's tokens, for those who look on; before it is acknowledged.

        Each series has an array for each row (numpy, torch, lists), with a number for each token of the row, or for
        each whose `loss_mask` is 1; or one number for all. With `row` all of them are of that row alone. NaN: nothing
        is said of this token. `notes` are texts by turn_id. What has the same name is replaced. Raises BadArgument,
        Gone.
        """
        name = name_of(trajectory.session_id)
        for body in annotating.bodies(trajectory, series, row=row, notes=notes or {}):
            await self._of_session("POST", name, "/annotations", wire.AnnotatedSession, body=body)

    async def acknowledge(self, trajectories: Iterable[Leased]) -> None:
        """They are trained. For what an export with `on_exit="keep"` handed out, in this process or another.

        Raises LeaseLost where another lease has some of them by now.
        """
        await self._leases.acknowledge(by_lease(trajectories))

    async def release(self, trajectories: Iterable[Leased]) -> None:
        """They are given back: they can be exported again, with the same ids."""
        await self._leases.release(by_lease(trajectories))

    async def renew(self, trajectories: Iterable[Leased], *, lease_seconds: float = 600.0) -> None:
        """Their leases run anew from now. Raises Conflict where one is over."""
        asked = valid(wire.RenewLease, {"lease_seconds": lease_seconds})
        await self._leases.renew(by_lease(trajectories), seconds=asked.lease_seconds)

    async def end_lease(
        self, lease_id: str, *, acknowledge: bool, trajectory_ids: Iterable[str] | None = None
    ) -> wire.Acknowledged | wire.Released:
        """Acknowledge or release what one lease holds, all of it unless named. Asked once, not again later."""
        return await self._leases.end(name_of(lease_id), trajectory_ids, acknowledge=acknowledge)

    async def export_file(
        self, *, max_trajectories: int | None = None, form: Format = "json", **terms: Unpack[ExportTerms]
    ) -> ExportFile:
        """Lease once, at one proxy; the answer as it came, for a file. Nobody renews the lease: `end_lease` ends it."""
        check_names("export_file", terms, ExportTerms)
        check_choice("form", form, ("json", "safetensors"))
        asked = valid(wire.AskExport, _by_name(terms) | {"max_trajectories": max_trajectories})
        return await export_file(self._proxies, asked, form=form)

    # Dumps

    def dumps(self, *, state: wire.DumpState | None = None) -> AsyncIterator[wire.ListedDump]:
        """The dumps in the proxies' folders. Raises NotEverywhere at the end where a proxy did not answer."""
        check_choice("state", state, (None, "ready", "importing", "imported"))
        return dumps.listed_dumps(self._proxies, state)

    async def fetch_dump(self, name: str, into: BinaryIO) -> None:
        """Write a dump's file there as it comes: it may be larger than memory. Raises OSError for what can't be."""
        await dumps.fetch_dump(self._proxies, name, into)

    async def import_dumps(
        self, names: Iterable[str], *, ordinal: int, incomplete: bool = False
    ) -> list[wire.ImportedDump]:
        """Take dumps in again at a proxy that lists them, all or none, so that what they hold can be exported.

        With `incomplete` also those whose shards are missing, without them.
        """
        asked = valid(wire.ImportDumps, {"names": list(names), "incomplete": incomplete})
        answer = await self._proxies.ask(ordinal, "POST", "/dumps/import", body=asked, timeout=IMPORT_TIMEOUT)
        return read_answer(answer, wire.ImportedDumps).imported

    # Weights

    async def weights(self) -> wire.Weights:
        """Run, version, epoch and pause, the newest that any proxy knows of."""
        return await self._weights.show()

    async def set_version(
        self, version: int, *, epoch: int | None = None, flush_cache: bool | None = None, strict: bool = False
    ) -> wire.Weights:
        """The engines have these weights now. Backwards is refused.

        `flush_cache` says whether the engines' prefix caches were flushed with the update, or since; by default that
        they were, unless the fleet is paused `in_place`. It matters where the fleet's `weights.cache` is `shared`.
        Proxies that it did not reach are under `failed`; with `strict` that raises NotEverywhere.
        """
        return await self._weights.set_version(
            valid(wire.SetVersion, {"version": version, "epoch": epoch, "flush_cache": flush_cache}), strict=strict
        )

    async def pause(
        self, mode: wire.PauseMode = "abort", *, timeout: float = 60.0, epoch: int | None = None, strict: bool = False
    ) -> wire.Weights:
        """Return when nothing of the fleet generates; where that fails, it is not left paused.

        The modes are in docs/weights.md; `timeout` is in seconds. `failed` and `strict` as in `set_version`.
        """
        asked = valid(wire.Pause, {"mode": mode, "timeout": timeout, "epoch": epoch})
        return await self._weights.pause(asked, strict=strict)

    async def resume(self, *, epoch: int | None = None, strict: bool = False) -> wire.Weights:
        """Engines go on, then proxies. `engines_failed` names engines that did not confirm."""
        return await self._weights.resume(epoch=epoch, strict=strict)

    def weight_update(
        self,
        version: int,
        *,
        mode: wire.PauseMode = "abort",
        flush_cache: bool | None = None,
        timeout: float = 60.0,
        strict: bool = False,
    ) -> AsyncWeightUpdate:
        """`async with fleet.weight_update(8):` put the weights of version 8 into the engines in the block.

        The fleet is paused before it; after it the version is set everywhere, and the fleet goes on. If the block
        fails, or what comes after it, the fleet stays paused: nobody knows what is in the engines. The exception says
        so. `flush_cache` is that of `set_version`.
        """
        asked = valid(wire.SetVersion, {"version": version, "flush_cache": flush_cache})
        pause = valid(wire.Pause, {"mode": mode, "timeout": timeout})
        return AsyncWeightUpdate(asked, self._weights, pause, strict)

    async def load_from_disk(
        self,
        path: str | os.PathLike[str],
        version: int,
        mode: wire.PauseMode = "abort",
        *,
        flush_cache: bool | None = None,
        timeout: float = 60.0,
        load_timeout: float = 600.0,
        strict: bool = False,
    ) -> wire.Weights:
        """Every engine loads a checkpoint as the weights of this version; agents wait meanwhile, in mid-turn.

        The proxy that gets the call leads it: pause, load, version, continue. `path` is the checkpoint's as the engines
        see it. `mode` and `timeout` are those of `pause`, `load_timeout` says how many seconds an engine may load. The
        engines flush their prefix caches, but for `in_place`. Raises StillPaused where an engine did not load, or
        nobody said how it ended: the fleet stays paused. The call may be made again. `strict` as in `set_version`.
        """
        values = {"path": os.fspath(path), "version": version, "mode": mode, "flush_cache": flush_cache}
        asked = valid(wire.LoadFromDisk, {**values, "timeout": timeout, "load_timeout": load_timeout})
        return await self._weights.load(asked, strict=strict)

    async def recover(
        self,
        version: int,
        *,
        run: int | None = None,
        newer: Literal["drop", "keep"] = "drop",
        open: wire.LeftOpen = "keep",
        confirm: bool = False,
        held: int | None = None,
        strict: bool = False,
    ) -> wire.Weights:
        """Go on from a checkpoint: its last step plus one is the `version`. Begins a new run, by default the next.

        What the fleet has of newer weights, or of a run that is over, is dropped or kept. To drop to less than half of
        the fleet's version needs `confirm=True`, where trajectories would go; else it raises Conflict
        (`recovery_too_far`), which says how many, and nothing has changed. Sessions that earlier runs left open are
        kept, closed or deleted, as `open` says.

        The budget is set to `version` batches and `held` ended sessions; unless that is given, those are counted that
        the fleet holds, and sessions that still run count as running. Where each rank has a budget of its own, give
        each its share.
        """
        values = {"version": version, "run": run if run is not None else 0, "newer": newer}
        asked = valid(wire.Recover, {**values, "open": open, "confirm": confirm})
        if run is None:
            asked = asked.model_copy(update={"run": (await self._weights.show()).run + 1})
        answer = await self._weights.recover(asked, strict=strict)
        if self._admission is not None:
            await self._admission.recovered(version, held=held)
        return answer


def _by_name(terms: ExportTerms) -> dict[str, Any]:
    """With ids in the place of sessions."""
    sessions = terms.get("session_ids")
    return {**terms, "session_ids": None if sessions is None else list(map(name_of, sessions))}
