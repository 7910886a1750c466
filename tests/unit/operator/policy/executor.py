"""The operator over simulated worlds: passes that see late, are cut short, or act twice, and forget at a restart."""

from dataclasses import dataclass, field, replace
from typing import Literal

from tests.unit.operator.policy.world import World

from rolloutfleet.wire import Drain
from rolloutfleet_operator.policy.decide import Decision, decide
from rolloutfleet_operator.policy.memory import sampled
from rolloutfleet_operator.policy.observed import NO_RUN, ObservedFleet, ObservedPod, OtherFleets, Run, SlotRequest
from rolloutfleet_operator.policy.status import status

Cut = Literal["before the status", "after the status", "after the children"]


@dataclass(frozen=True)
class Faults:
    """What goes wrong with one pass."""

    late: int = 0
    """So many passes old is what is seen of pods and StatefulSet."""
    silent: frozenset[int] = frozenset()
    """Ordinals whose poll fails."""
    cut: Cut | None = None
    """Where the operator dies."""
    lost: frozenset[int] = frozenset()
    """Places of actions that do not arrive."""
    twice: bool = False


NONE = Faults()


@dataclass
class Operator:
    """One process, with what it remembers: samples in a row, failed polls, drains, and what the other fleets said."""

    most: int = 1
    runs: dict[str, Run] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)
    drains: dict[str, Drain | None] = field(default_factory=dict)
    board: dict[str, tuple[int, tuple[SlotRequest, ...]]] = field(default_factory=dict)
    earlier: dict[str, list[ObservedFleet]] = field(default_factory=dict)
    decision: Decision | None = None
    fleets: int = 1

    def restart(self) -> None:
        """Another process: it remembers nothing."""
        self.runs.clear()
        self.unanswered.clear()
        self.drains.clear()
        self.board.clear()
        self.earlier.clear()

    def run(self, world: World, faults: Faults = NONE) -> bool:
        """One pass. Whether it changed anything."""
        version = world.version
        observed = self.see(world, faults)
        decision = self.decision = decide(world.spec, observed, world.now)
        self.board[observed.key + world.name] = (decision.held, decision.slot_requests)
        if faults.cut == "before the status":
            self.restart()
            return True
        said = status(world.spec, observed, decision, world.now)
        written = said != world.status
        if not world.write_status(said, version):
            return True
        if faults.cut == "after the status":
            self.restart()
            return True
        world.apply(decision)
        if faults.cut == "after the children":
            self.restart()
            return True
        for place, action in enumerate(decision.actions):
            if place not in faults.lost:
                world.act(action)
                if faults.twice:
                    world.act(action)
        return written or bool(decision.actions)

    def see(self, world: World, faults: Faults) -> ObservedFleet:
        now = world.snapshot()
        history = self.earlier.setdefault(world.name, [])
        history.append(now)
        del history[:-5]
        old = history[max(0, len(history) - 1 - faults.late)]
        polled = {pod.uid: pod.stats for pod in now.pods if pod.ordinal not in faults.silent}
        pods = []
        for pod in old.pods:
            stats = polled.get(pod.uid)
            self._sample(pod, replace(pod, stats=stats), world)
            run = self.runs.get(pod.uid, NO_RUN)
            drain = self.drains.get(pod.uid)
            in_drain = drain is not None and (drain.expires is None or world.now < drain.expires)
            unanswered = self.unanswered.get(pod.uid, 0)
            pods.append(replace(pod, stats=stats, run=run, unanswered=unanswered, in_drain=in_drain))
        others = {key: told for key, told in self.board.items() if key != now.key + world.name}
        other_fleets = OtherFleets(
            held=sum(held for held, _ in others.values()),
            slot_requests=tuple(want for _, slot_requests in others.values() for want in slot_requests),
            known=len(others) >= self.fleets - 1,
        )
        return replace(
            now, pods=tuple(pods), workload=old.workload, other_fleets=other_fleets, most_disruptions=self.most
        )

    def _sample(self, before: ObservedPod, pod: ObservedPod, world: World) -> None:
        if pod.stats is None:
            self.unanswered[pod.uid] = self.unanswered.get(pod.uid, 0) + 1
            return
        self.unanswered[pod.uid] = 0
        self.drains[pod.uid] = pod.stats.drain
        self.runs[pod.uid] = sampled(self.runs.get(pod.uid, NO_RUN), pod.stats, world.spec.memory, world.now)


def settle(worlds: list[World], operator: Operator, *, passes: int, every: float = 5.0) -> int:
    """Passes without faults until nothing changes or is waited for; how many it took. Fails beyond `passes`."""
    quiet = 0
    for made in range(passes):
        changed = [operator.run(world) for world in worlds]
        for world in worlds:
            world.tick(every)
        waits = any(world.status.current is not None or is_progressing(world) for world in worlds)
        quiet = 0 if waits or any(changed) else quiet + 1
        if quiet == REST:
            return made
    stands = [(world.status.current, world.status.problems, world.status.conditions[0]) for world in worlds]
    raise AssertionError(f"not at rest after {passes} passes: {stands}")


def is_progressing(world: World) -> bool:
    """Whether the status says that something is on its way."""
    return any(each.type == "Progressing" and each.status == "True" for each in world.status.conditions)


REST = 4
"""So many passes in a row that changed nothing are rest."""
