"""How the gateway is started, on this machine and on a cluster: the stock `smg` (https://github.com/smg-project/smg).

It forwards a request's body unchanged only while it has no reason to read it: in its plain mode, under a policy that
looks at no prompt, with retries off, and for a body of declared length. Otherwise it serialises the body anew, without
the sampling parameters that it does not know. So these flags keep it a gateway that loses nothing. Its own discovery of
pods would end the plain mode, so it is told of its engines.
"""

import inspect
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator import commands, engine_addresses
from rolloutfleet_operator.commands import KeyFlag

MODULE: Final = "smg.launch_router"
LONGEST_ROUTE: Final = 14_400.0
"""Seconds for which an idle session's engine is remembered, at the least (the gateway's own default)."""
_WEEK: Final = 604_800
_REGISTERED_WITHIN: Final = 60


def command(python: str, *, control_key: PurePath, api_key: PurePath | None) -> list[str]:
    """Starts the gateway; its flags follow.

    Without `control_key`, whoever reaches the gateway could send its requests to engines of theirs. `api_key` is the
    engines': the gateway asks callers for it too.
    """
    keys = [KeyFlag(flag="--control-plane-api-keys", prefix="rolloutfleet:rolloutfleet:admin:", file=control_key)]
    if api_key is not None:
        keys.append(KeyFlag(flag="--api-key", file=api_key))
    return commands.module(python, MODULE, keys)


def flags(spec: FleetSpec) -> dict[str, object]:
    """The flags of every gateway, by name; None for those without a value."""
    return {
        "--policy": spec.gateway.policy,
        "--max-idle-secs": int(max(LONGEST_ROUTE, spec.sessions.stale_after)),
        # A silent retry of a generation would make a second one, and bodies would be written anew.
        "--disable-retries": None,
        # Whoever comes is let in, and a session stays with its engine, however busy that one is: how much is under way
        # is for the proxies to limit.
        "--disable-circuit-breaker": None,
        "--disable-worker-overload-protection": None,
        "--max-concurrent-requests": 0,
        # Nothing that is chosen here needs the engines' loads, or their tokenizers.
        "--disable-load-monitoring": None,
        "--disable-tokenizer-autoload": None,
        # Its comments in a silent stream would keep from a proxy that the engine is silent.
        "--sse-keepalive-secs": 0,
        # An engine that is up is used within a second or two.
        "--worker-startup-check-interval": 1,
        "--health-success-threshold": 1,
        "--log-level": "warn",
        # Its text has colour codes, into a file too.
        "--log-json": None,
    }


def with_engines_of(
    service: str, port: int, *, gateway_port: int, control_key: PurePath, command: Sequence[str]
) -> list[str]:
    """A pod's command for a gateway, with the engines of that headless Service to begin with and to let go of."""
    source = inspect.getsource(engine_addresses)
    words = [service, str(port), f"http://127.0.0.1:{gateway_port}", str(control_key)]
    return ["python3", "-c", source, *words, *command]


def named_engines(urls: Sequence[str]) -> list[str]:
    """Engines at fixed addresses; they may come up long after their gateway."""
    return ["--worker-startup-timeout-secs", str(_WEEK), "--worker-urls", *urls]


def pushed_engines() -> list[str]:
    """Engines that are told to the running gateway once they are ready (`POST /workers`), and again where that failed:
    an attempt must end before the address is another pod's."""
    return ["--worker-startup-timeout-secs", str(_REGISTERED_WITHIN)]
