"""The keys of a fleet: admin keys, generated and rotated unless the spec names a Secret; those of gateways and engines.

Secrets are read by name, and never listed.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object
from rolloutfleet_operator.cluster.apply import name_taken, owned, refusal
from rolloutfleet_operator.cluster.children import secret as secrets
from rolloutfleet_operator.cluster.children.names import Component, Fleet
from rolloutfleet_operator.cluster.children.secret import ADMIN_KEYS, CONTROL_KEY, ENGINE_KEY, KeyFile
from rolloutfleet_operator.cluster.proxy_client import ProxyClient
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class FoundKey(Generic[K]):
    key: K | None
    """None where there is none that can be used."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetKeys:
    api: Api
    proxies: ProxyClient

    async def keys(
        self, fleet: Fleet, there: Object | None, proxies: Sequence[str | None], now: float
    ) -> FoundKey[secrets.Keys]:
        """The admin keys as they should be now; `there` is the Secret, `proxies` has an address for each pod."""
        found = None if there is None else secrets.read(there)
        if fleet.spec.auth.secret is not None:
            return _named(found, "auth.secret", fleet.keys, ADMIN_KEYS, "(admin keys, one per line)")
        if there is not None and not owned(there, fleet.uid):
            return FoundKey(None, (name_taken("Secret", fleet.own_keys, "delete it, or name it as auth.secret"),))
        taken = found is not None and await self._taken(found, proxies)
        wanted = secrets.wanted(fleet, found, taken=taken, now=now, fresh=secrets.new_key())
        if wanted != found:
            try:
                await self.api.apply(secrets.secret(fleet, wanted))
            except ApiRefused as refused:
                return FoundKey(found, (refusal("Secret", fleet.own_keys, refused),))
        return FoundKey(wanted)

    async def of_proxies(self, fleet: Fleet, current: secrets.Keys | None, pods: Iterable[Object]) -> dict[str, str]:
        """The key for each, by pod: that of the Secret which it mounts, or the current one where that is gone."""
        mounted = {pod["metadata"]["name"]: secrets.mounted_by(pod) for pod in pods}
        others = {*mounted.values()} - {fleet.keys, ""}
        found = {name: secrets.read(await self.api.get("Secret", fleet.namespace, name) or {}) for name in others}
        return {pod: keys.keys[0] for pod, name in mounted.items() if (keys := found.get(name) or current) is not None}

    async def control_key(self, fleet: Fleet) -> FoundKey[str]:
        """The key of the gateways' control plane, made where there is none."""
        there = await self.api.get("Secret", fleet.namespace, fleet.control_key)
        if there is not None and not owned(there, fleet.uid):
            return FoundKey(None, (name_taken("Secret", fleet.control_key, "delete it"),))
        found = CONTROL_KEY.read(there)
        if found is not None:
            return FoundKey(found)
        made = secrets.new_key()
        try:
            await self.api.apply(CONTROL_KEY.secret(fleet, fleet.control_key, Component.GATEWAY, f"{made}\n"))
        except ApiRefused as refused:
            return FoundKey(None, (refusal("Secret", fleet.control_key, refused),))
        return FoundKey(made)

    async def engine_key(self, fleet: Fleet) -> FoundKey[str]:
        """What gateway and engines ask for; they may ask for none."""
        name = fleet.spec.gateway.api_key_secret
        if name is None:
            return FoundKey(None)
        found = ENGINE_KEY.read(await self.api.get("Secret", fleet.namespace, name))
        return _named(found, "gateway.apiKeySecret", name, ENGINE_KEY, "that can be read (text, in base64)")

    async def _taken(self, keys: secrets.Keys, proxies: Sequence[str | None]) -> bool:
        """Whether every proxy takes the newest key, where there are two and that one does not stand first."""
        if len(keys.keys) < 2 or keys.leading_since is not None:
            return False
        asked = [self.proxies.takes(url, keys.newest) for url in proxies if url is not None]
        answers = await asyncio.gather(*asked)
        return len(answers) == len(proxies) and all(answers)


def _named(found: K | None, field: str, secret: str, key: KeyFile, form: str) -> FoundKey[K]:
    """What was found in a Secret that the spec names."""
    if found is not None:
        return FoundKey(found)
    message = f"{field} names the Secret {secret}, which is not there or has no key `{key.file.name}` {form}"
    return FoundKey(None, (Problem(ProblemReason.KEYS_MISSING, message),))
