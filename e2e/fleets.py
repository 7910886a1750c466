"""A fleet on the cluster as tests see it: made, edited, waited for, and asked for what it holds."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import until
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kubectl import Kubectl

from e2e import agents
from e2e.installing import Images

READY_SECONDS = 240


def manifest(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A fleet of two small proxies and one simulated engine, with `spec` laid over it."""
    base: dict[str, Any] = {
        "model": "simulated",
        "proxies": {"replicas": 2, "storage": {"size": "1Gi"}},
        "memory": {"rssBudget": "1Gi"},
        "disruption": {"drainTimeout": "20s"},
        "gateway": {"replicas": 1},
        "engine": {"replicas": 1, "gpus": 0},
    }
    merged = _merged(base, spec)
    return {
        "apiVersion": "rolloutfleet.dev/v1alpha1",
        "kind": "RolloutFleet",
        "metadata": {"name": name},
        "spec": merged,
    }


def not_terminating(pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that nobody has asked to end."""
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(under[key], over[key]) for key in under.keys() & over.keys() if isinstance(over[key], dict)}
    return {**under, **over, **both}


@dataclass(frozen=True, slots=True)
class Fleet:
    """One fleet, by name, in a namespace."""

    namespace: Kubectl
    images: Images
    name: str = "demo"
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        return f"rolloutfleet/{self.name}"

    def apply(self) -> None:
        """Create it, without waiting for anything."""
        self.namespace("apply", "--filename", "-", stdin=json.dumps(manifest(self.name, self.spec)))

    def make(self) -> "Fleet":
        """Create it and wait until it is Ready."""
        self.apply()
        self.until_ready()
        return self

    def patch(self, spec: dict[str, Any]) -> None:
        self.namespace("patch", self.resource, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def until_ready(self) -> None:
        self.until("it is Ready for its newest spec", self.is_ready)

    def has_restarted(self, wanted: str) -> bool:
        """True once the restart of that id is answered."""
        return bool(self.status().get("restart", {}).get("observedID") == wanted)

    def is_ready(self) -> bool:
        """For its newest spec."""
        seen = self.namespace.get(self.resource)
        ready = self.condition("Ready", seen)
        newest = seen["metadata"]["generation"]
        return bool(ready) and ready["status"] == "True" and ready.get("observedGeneration") == newest

    def settings_in_force(self) -> bool:
        """Those of its newest spec."""
        seen = self.namespace.get(self.resource)
        condition, newest = self.condition("SettingsInForce", seen), seen["metadata"]["generation"]
        return condition.get("status") == "True" and condition.get("observedGeneration") == newest

    def condition(self, kind: str, seen: dict[str, Any] | None = None) -> dict[str, Any]:
        conditions = (seen or self.namespace.get(self.resource)).get("status", {}).get("conditions", [])
        found: dict[str, Any] = next((each for each in conditions if each["type"] == kind), {})
        return found

    def until(self, what: str, holds: Callable[[], object], *, seconds: float = READY_SECONDS) -> None:
        """Look once a second. Raises AssertionError with the status where it does not come to hold."""
        until(
            holds,
            seconds=seconds,
            rest=1.0,
            state=lambda: f"{what}; status: {json.dumps(self.status(), indent=1)}",
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.namespace.get(self.resource).get("status", {})
        return found

    def problems(self) -> dict[str, str]:
        """Each pod's worst problem, by its reason; the fleet's own under an empty name."""
        return {each.get("pod") or "": each["reason"] for each in reversed(self.status().get("problems", []))}

    def proxies(self) -> dict[str, dict[str, Any]]:
        """The proxies' pods, by name."""
        chosen = f"--selector=rolloutfleet.dev/fleet={self.name},app.kubernetes.io/component=proxy"
        return {pod["metadata"]["name"]: pod for pod in self.namespace.get("pods", chosen)["items"]}

    def proxy_on(self, node: str) -> str:
        """The one proxy whose pod is on that node."""
        (name,) = (name for name, pod in self.proxies().items() if pod["spec"].get("nodeName") == node)
        return name

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.proxies().items()}

    def container_restarts(self) -> dict[str, int]:
        return {
            name: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
            for name, pod in self.proxies().items()
        }

    def reasons(self) -> set[str]:
        """What the status says is wrong."""
        return {problem["reason"] for problem in self.status().get("problems", [])}

    def stats(self, pod: str) -> dict[str, Any]:
        """What the proxy says of itself."""
        code = (
            "import httpx, pathlib; key = pathlib.Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0];"
            "print(httpx.get('http://127.0.0.1:8080/stats', headers={'Authorization': 'Bearer ' + key}).text)"
        )
        found: dict[str, Any] = json.loads(self.namespace("exec", pod, "--", "python", "-c", code))
        return found

    def boots(self, pod: str) -> list[dict[str, Any]]:
        """The proxy's own durable log of its boots."""
        found: list[dict[str, Any]] = self.stats(pod)["boots"]
        return found

    def export(self, replicas: int) -> dict[str, list[str]]:
        """Everything, taken and acknowledged: turns by session. The books balance."""
        taken = agents.run(
            self.namespace, "export.py", str(replicas), fleet=self.name, image=self.images.proxy, seconds=300
        )
        assert taken["audit"]["balanced"] is True
        exported: dict[str, list[str]] = taken["exported"]
        return exported

    @contextmanager
    def traffic(
        self, *, number: int = 3, retries: int = 2, characters: int = 0, node: str | None = None
    ) -> Iterator["Traffic"]:
        """Agents that know of nothing, until the block ends; each session begins with a text of so many characters.
        `node`: where they run."""
        words = ("traffic.py", str(number), str(retries), str(characters))
        job = agents.start(self.namespace, *words, fleet=self.name, image=self.images.proxy, node=node)
        self.namespace("wait", f"job/{job}", "--for=jsonpath={.status.ready}=1", "--timeout=240s", seconds=250)
        self.until("agents are under way", lambda: "begun" in self.log(job))
        traffic = Traffic()
        yield traffic
        # The container may end before `kubectl exec` does. If the signal were lost, `finish` would time out.
        told = ("python", "-c", "import os, signal; os.kill(1, signal.SIGUSR1)")
        self.namespace.succeeds("exec", f"job/{job}", "--", *told)
        said = agents.finish(self.namespace, job)
        traffic.answered, traffic.errors, traffic.at = said["answered"], said["errors"], said["at"]
        traffic.slowest = said["slowest"]

    def log(self, job: str) -> str:
        try:
            return self.namespace("logs", f"job/{job}")
        except CommandFailed:
            return ""


@dataclass
class Traffic:
    """What agents saw, once they have stopped."""

    answered: dict[str, list[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """Of these, in seconds since the epoch."""
    slowest: float = 0

    def lost(self, kept: dict[str, list[str]]) -> dict[str, set[str]]:
        """Answered turns that are not among `kept`, by session."""
        lacking = {session: set(turns) - set(kept.get(session, [])) for session, turns in self.answered.items()}
        return {session: turns for session, turns in lacking.items() if turns}
