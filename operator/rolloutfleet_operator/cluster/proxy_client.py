"""Client of a fleet's proxies: their figures, drains and dumps.

A proxy that does not answer is nothing unusual, and no exception: each method's result can say so.
"""

from collections.abc import Mapping
from typing import Any, Final

from rolloutfleet.wire import Boot, Drain
from rolloutfleet_operator.cluster.http_client import Answer, HttpClient
from rolloutfleet_operator.policy.actions import AskDrain, UndoDrain
from rolloutfleet_operator.policy.observed import ProxyStats

POLL_TIMEOUT: Final = 5.0
"""Seconds for a proxy's figures."""
DRAIN_TIMEOUT: Final = 30.0
"""Seconds for a drain, or dumps, to be answered."""


_REFUSALS: Final = (401, 403)


class KeyRefused(Exception):
    """The proxy does not take the key; the message is its address."""


class ProxyClient:
    """All proxies of all fleets."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def stats(self, url: str, key: str, *, audit: bool) -> ProxyStats | None:
        """None where it did not answer, or not with figures. Raises KeyRefused."""
        answer = await self._get(f"{url}/stats", key)
        if answer.status in _REFUSALS:
            raise KeyRefused(url)
        figures = answer.json()
        try:
            if figures is not None and audit and "held" not in figures:  # it is of an earlier release
                sums = (await self._get(f"{url}/audit", key)).json()
                figures["held"] = None if sums is None else {kind: _held(sums[kind]) for kind in ("turns", "sessions")}
            return None if figures is None else proxy_stats(figures)
        except (KeyError, TypeError, ValueError):
            return None

    async def takes(self, url: str, key: str) -> bool:
        """Whether the proxy takes that key."""
        return (await self._get(f"{url}/stats", key)).json() is not None

    async def drain(self, url: str, key: str, asked: AskDrain) -> str:
        """What became of it, in words; empty where it was heard, or where the next pass will see why not."""
        body = {"id": asked.id, "mode": asked.mode, "then": asked.then, "ttl": asked.ttl, "reason": asked.reason}
        return await self._said("POST", f"{url}/drain", key, json=body)

    async def undo(self, url: str, key: str, asked: UndoDrain) -> str:
        return await self._said("DELETE", f"{url}/drain", key, params={"id": asked.id})

    async def dump(self, url: str, key: str) -> str:
        """Have everything dumped that can be; asked again and again until nothing is held any more."""
        return await self._said("POST", f"{url}/dumps", key)

    async def _said(self, method: str, url: str, key: str, **more: Any) -> str:
        answer = await self._http.ask(method, url, key, timeout=DRAIN_TIMEOUT, **more)
        if answer.failure:
            return f"no answer: {answer.failure}"
        expected = answer.is_success or answer.status in (400, 409)
        return "" if expected else f"{answer.status} {answer.content.decode(errors='replace')[:200]}"

    async def _get(self, url: str, key: str) -> Answer:
        return await self._http.ask("GET", url, key, timeout=POLL_TIMEOUT)


def proxy_stats(figures: Mapping[str, Any]) -> ProxyStats:
    """A proxy's /stats. Raises KeyError, TypeError or ValueError for anything else."""
    dump, settings = figures["dump"], figures["settings"]
    held = figures.get("held") or {}
    return ProxyStats(
        rss=int(figures["rss_bytes"]),
        sessions_open=int(figures["sessions"]["open"]),
        in_flight=int(figures["in_flight"]),
        held_sessions=held.get("sessions"),
        held_turns=held.get("turns"),
        drain=None if figures.get("drain") is None else Drain.model_validate(figures["drain"]),
        boots=tuple(Boot.model_validate(each) for each in figures["boots"]),
        dump_failing=bool(dump["failing"]),
        dump_error=dump.get("error"),
        paused=bool(figures["paused"]),
        past_max_hold=bool(figures.get("past_max_hold")),
        store_id=str(figures["store_id"]),
        settings_generation=int(settings["generation"]),
        live_generation=_live_generation(settings),
        settings_error=settings.get("error"),
        needs_restart=tuple(settings.get("needs_restart") or ()),
        gateway_loses=tuple((figures.get("gateway") or {}).get("loses") or ()),
        store_full=bool((figures.get("store") or {}).get("full")),
    )


def _live_generation(settings: Mapping[str, Any]) -> int | None:
    """Earlier releases say it only where nothing waits for a restart."""
    if "live_generation" in settings:
        return int(settings["live_generation"])
    return None if settings.get("needs_restart") else int(settings["generation"])


def _held(sums: Mapping[str, Any]) -> int:
    return int(sums["live"]) + int(sums["leased"])
