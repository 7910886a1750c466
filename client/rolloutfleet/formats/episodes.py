"""One rollout for a trainer that asks for one at a time."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Final, TypedDict

from rolloutfleet.fleet import AsyncFleet, BadArgument, Command, Trajectory, Unreachable, Whereabouts
from rolloutfleet.fleet.rollouts.agents import Agent
from rolloutfleet.fleet.rollouts.rollout import AsyncRollout, RolloutOptions, plan_of
from rolloutfleet.fleet.trajectories import Leased, LeasedName
from rolloutfleet.programs import Program

LEASES: Final = "rolloutfleet_leases"
"""The key of what is to be acknowledged, in the records of trainers that take no objects."""
_IMPORT_PATH: Final = re.compile(r"[\w.]+:\w+")
_FAILURES: Final[list[str | None]] = []
"""Of the newest rollouts of this process, each by a fleet object of its own, why they failed; None where not."""


class Lease(TypedDict):
    """A trajectory that is to be acknowledged. Plain, so that it passes through a trainer's own records."""

    trajectory_id: str
    lease_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """A fleet and an agent to make rollouts with, as a trainer's configuration names them."""

    agent: str
    """`package.module:function`, called as `agent(session, task)`, in a thread unless it is async; or a command line
    (`Command`). A number that the function returns is the reward."""
    for_: Program = "openai"
    """The program that a command is, or is like: its environment is `session.environ(for_=…)`."""
    fleet: str | None = None
    """The address of a proxy, or a local fleet's `fleet.json` or folder. By default ROLLOUTFLEET_URL or
    ROLLOUTFLEET_FLEET_FILE names it, else it is the only one that was started in the working folder."""
    timeout: float | None = None
    """Seconds for the agent, which is ended after them. A function in a thread can't be."""
    lease_seconds: float = 86400.0
    """The time of a lease, for the step; a later acknowledgement counts unless somebody else has leased it since."""
    evaluation: bool = False
    """Whether nothing is trained: the fleet discards each rollout as soon as it is handed out."""
    max_failures: float = 0.5
    """The share of this process's last 100 rollouts, once there are 10, above which one raises TooManyFailures."""

    async def run(self, task: Any, *, sampling: Mapping[str, Any] | None = None) -> list[Trajectory]:
        """A session's trajectories, leased unless they are an evaluation's; none where it ended without a turn.

        `sampling` is the trainer's: its temperature, top_p and top_k override the agent's. What the agent raises ends
        the session as failed. Raises FleetError: TooManyFailures, or where the session's proxy is away.
        """
        own = {name: value for name, value in (sampling or {}).items() if name in ("temperature", "top_p", "top_k")}
        options: RolloutOptions = {
            "n": 1,
            "timeout": self.timeout,
            "sampling": {"overrides": own} if own else None,
            "max_failures": self.max_failures,
            "export": {"lease_seconds": self.lease_seconds},
            "on_exit": "discard" if self.evaluation else "keep",
        }
        fleet = AsyncFleet(self.where(), progress=False)
        plan = plan_of(agent_of(self.agent, for_=self.for_), [task], options)
        async with fleet, AsyncRollout(fleet, plan, _FAILURES) as episodes:
            [episode] = await anext(episodes)
            if not episode.trajectories and isinstance(episode.error, Unreachable):
                raise episode.error
        return [*episode.trajectories]

    async def acknowledge(self, leases: Iterable[Lease]) -> None:
        """They are trained; each may be named several times. Raises LeaseLost where somebody else leased some since."""
        once = {lease["trajectory_id"]: LeasedName(**lease) for lease in leases}
        async with AsyncFleet(self.where(), progress=False) as fleet:
            await fleet.acknowledge(once.values())

    def where(self) -> Whereabouts:
        """The fleet that is meant. Raises BadArgument."""
        named = self.fleet or os.environ.get("ROLLOUTFLEET_URL") or os.environ.get("ROLLOUTFLEET_FLEET_FILE")
        if named is not None and named.startswith(("http://", "https://")):
            return Whereabouts.from_url(named)
        return Whereabouts.from_file(named)


def leases_of(trajectories: Iterable[Leased]) -> list[Lease]:
    """The leases of these trajectories, for `Episodes.acknowledge`."""
    return [{"trajectory_id": each.trajectory_id, "lease_id": each.lease_id} for each in trajectories]


def agent_of(name: str, *, for_: Program = "openai") -> Agent:
    """The agent that a configuration names. Raises BadArgument."""
    if not _IMPORT_PATH.fullmatch(name):
        return Command(shlex.split(name), for_=for_)
    try:
        found: Agent = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadArgument("agent", f"{name} can't be imported: {error}") from error
    return found
