"""One rollout for a trainer that asks for one at a time: session, agent, reward, export."""

import asyncio
import json
import logging
import os
import re
import shlex
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Final, TypedDict

from rolloutfleet.fleet import AsyncFleet, AsyncSession, Trajectory, Whereabouts
from rolloutfleet.fleet.trajectories import Leased

log = logging.getLogger("rolloutfleet.formats")

_EXPORT_TIMEOUT: Final = 60.0
"""Seconds for the end of a session to have reached its proxy."""
_IMPORT_PATH: Final = re.compile(r"[\w.]+:\w+")


class Lease(TypedDict):
    """A trajectory that is to be acknowledged. Plain, so that it passes through a trainer's own records."""

    trajectory_id: str
    lease_id: str


class AgentFailed(Exception):
    """An agent's command ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """A fleet and an agent to make rollouts with, as a trainer's configuration names them."""

    agent: str
    """`package.module:function`, called as `agent(session, task)`, in a thread unless it is async; or a command line,
    with OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_AUTH_TOKEN, and the task as JSON in its
    standard input. A number that the function returns is the reward."""
    fleet: str | None = None
    """The address of a proxy, or a local fleet's `fleet.json` or folder. By default ROLLOUTFLEET_URL or
    ROLLOUTFLEET_FLEET_FILE names it, else it is the only one that was started in the working folder."""
    timeout: float | None = None
    """Seconds for the agent, which fails after them. A command is killed; a function in a thread can't be."""
    lease_seconds: float = 86400.0
    """The time of a lease, for the step; a later acknowledgement counts unless somebody else has leased it since."""

    async def run(
        self, task: Any, *, task_id: str | None = None, sampling: Mapping[str, Any] | None = None
    ) -> list[Trajectory]:
        """A session's trajectories, leased; none where it ended without a turn.

        `sampling` is the trainer's: its temperature, top_p and top_k override the agent's. What the agent raises is
        logged, and ends the session as failed. Raises FleetError.
        """
        own = {name: value for name, value in (sampling or {}).items() if name in ("temperature", "top_p", "top_k")}
        async with AsyncFleet(self.where(), progress=False) as fleet:
            session = await fleet.start_session(task_id, sampling={"overrides": own} if own else None)
            try:
                async with session, asyncio.timeout(self.timeout):
                    reward = await call_agent(self.agent, session, task)
                    if reward is not None:
                        await session.reward(reward)
            except Exception as error:
                log.warning("the agent of session %s failed: %s: %s", session.session_id, type(error).__name__, error)
            wanted: dict[str, Any] = {"session_ids": [session], "lease_seconds": self.lease_seconds, "on_exit": "keep"}
            async with fleet.export(wait=True, timeout=_EXPORT_TIMEOUT, **wanted) as export:
                return [trajectory async for trajectory in export]

    async def acknowledge(self, leases: Iterable[Lease]) -> None:
        """They are trained. Raises LeaseLost where somebody else leased some of them since."""
        async with AsyncFleet(self.where(), progress=False) as fleet:
            await fleet.acknowledge([_Leased(**lease) for lease in leases])

    def where(self) -> Whereabouts:
        """The fleet that is meant. Raises BadArgument."""
        named = self.fleet or os.environ.get("ROLLOUTFLEET_URL") or os.environ.get("ROLLOUTFLEET_FLEET_FILE")
        if named is not None and named.startswith(("http://", "https://")):
            return Whereabouts.from_url(named)
        return Whereabouts.from_file(named)


@dataclass(frozen=True, slots=True)
class _Leased:
    trajectory_id: str
    lease_id: str


def leases_of(trajectories: Iterable[Leased]) -> list[Lease]:
    """The leases of these trajectories, for `Episodes.acknowledge`."""
    return [{"trajectory_id": each.trajectory_id, "lease_id": each.lease_id} for each in trajectories]


async def call_agent(agent: str, session: AsyncSession, task: Any) -> float | None:
    """Run the agent to its end; returns its reward, None where it gives none. Raises what it raises."""
    if not _IMPORT_PATH.fullmatch(agent):
        await _run_command(agent, session, task)
        return None
    module, _, name = agent.partition(":")
    function = getattr(import_module(module), name)
    called = function(session, task) if iscoroutinefunction(function) else asyncio.to_thread(function, session, task)
    found = await called
    return None if found is None else float(found)


async def _run_command(command: str, session: AsyncSession, task: Any) -> None:
    """In a process group of its own, which ends with this call. Raises AgentFailed."""
    process = await asyncio.create_subprocess_exec(
        *shlex.split(command),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=os.environ
        | {
            "OPENAI_BASE_URL": session.base_url,
            "OPENAI_API_KEY": session.api_key,
            "ANTHROPIC_BASE_URL": session.base_url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": session.api_key,
        },
    )
    try:
        await process.communicate(json.dumps(task, default=str).encode())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode:
        raise AgentFailed(f"{shlex.split(command)[0]} ended with status {process.returncode}")
