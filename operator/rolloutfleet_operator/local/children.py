"""What a spec means as processes on this machine. Pure: ports, folders and paths are handed in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolloutfleet.settings import PeersSettings, ProxySettings
from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator import commands, smg
from rolloutfleet_operator.commands import KeyFlag
from rolloutfleet_operator.local.plan import Child, Kind
from rolloutfleet_operator.local.site import LOOPBACK, LocalFleetError, StateFolder
from rolloutfleet_operator.policy.workers import engines_by_address
from rolloutfleet_operator.proxy_settings import proxy_settings

GATEWAY = "gateway"
GATEWAY_METRICS = "gateway-metrics"
START_LIMIT: Final = 300.0
"""Seconds until a process is ready. A slow disk may take minutes over the first look at the libraries, and a tokenizer
may come from the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSite:
    """This machine, for one fleet. `ports` has one for each name that `port_names` gives."""

    fleet: str
    folder: StateFolder
    python: str
    ports: Mapping[str, int]
    model_path: Path | None
    """The directory of model or tokenizer, where it is on this machine."""
    engine_key_file: Path
    """The key that the gateway and simulated engines ask for, and that is sent to all engines."""

    def url(self, name: str) -> str:
        return f"http://{LOOPBACK}:{self.ports[name]}"

    def engine_urls(self, spec: FleetSpec) -> list[str]:
        if spec.engine is not None:
            return [self.url(name) for name in engine_names(spec)]
        return list(given_engines(spec))

    def children(self, spec: FleetSpec) -> tuple[Child, ...]:
        """Simulated engines where `engine` is given, the gateway, the proxies; nothing while suspended."""
        if spec.suspend:
            return ()
        engines = [_engine(self, spec, name, index) for index, name in enumerate(engine_names(spec))]
        proxies = [_proxy(self, spec, ordinal) for ordinal in range(spec.proxies.replicas)]
        return (*engines, _gateway(self, spec), *proxies)


def engine_names(spec: FleetSpec) -> list[str]:
    return [f"engine-{index}" for index in range(spec.engine.replicas)] if spec.engine else []


def proxy_name(ordinal: int) -> str:
    return f"proxy-{ordinal}"


def port_names(spec: FleetSpec) -> list[str]:
    """What needs a port here."""
    proxies = [proxy_name(ordinal) for ordinal in range(spec.proxies.replicas)]
    return [*engine_names(spec), GATEWAY, GATEWAY_METRICS, *proxies]


def given_engines(spec: FleetSpec) -> list[str]:
    """Addresses of engines that somebody else runs. Raises LocalFleetError for a selector."""
    urls = engines_by_address(spec)
    if urls is None:
        raise LocalFleetError(
            "gateway.engines.selector finds pods on a cluster; on this machine name engines by "
            "gateway.engines.urls, or give engine for simulated ones"
        )
    return urls


def _engine(site: LocalSite, spec: FleetSpec, name: str, index: int) -> Child:
    assert spec.engine is not None
    flags = commands.simulated_engine(
        spec.engine.simulated, host=LOOPBACK, port=site.ports[name], model=spec.model, index=index
    )
    key = KeyFlag(flag="--api-key", file=site.engine_key_file)
    command = commands.module(site.python, "rolloutfleet_engine", [key])
    return Child(
        name=name,
        kind=Kind.ENGINE,
        start_limit=START_LIMIT,
        argv=(*command, *flags, "--model-path", str(site.model_path)),
        url=site.url(name),
        ready_path="/health",
        # Not /health, which waits for a generation: in a pause, and while weights are loaded, there is none.
        answers_path="/model_info",
        stop_grace=5.0,
    )


def _gateway(site: LocalSite, spec: FleetSpec) -> Child:
    flags = {
        "--host": LOOPBACK,
        "--port": site.ports[GATEWAY],
        "--prometheus-host": LOOPBACK,
        "--prometheus-port": site.ports[GATEWAY_METRICS],
        **smg.flags(spec),
        "--health-check-interval-secs": 1,
        # SGLang takes a second and more for GET /health: it generates a token.
        "--health-check-timeout-secs": 5,
        "--shutdown-grace-period-secs": 2,
    }
    command = smg.command(site.python, control_key=site.folder.gateway_key, api_key=site.engine_key_file)
    return Child(
        name=GATEWAY,
        kind=Kind.GATEWAY,
        start_limit=START_LIMIT,
        argv=(*command, *commands.flags(flags), *smg.named_engines(site.engine_urls(spec))),
        url=site.url(GATEWAY),
        # Not /readiness, which waits for an engine: those that others run may come much later.
        ready_path="/health",
        stop_grace=5.0,
    )


def _proxy(site: LocalSite, spec: FleetSpec, ordinal: int) -> Child:
    name = proxy_name(ordinal)
    settings = _proxy_settings(site, spec, ordinal)
    file = site.folder.settings / f"{name}.json"
    return Child(
        name=name,
        kind=Kind.PROXY,
        start_limit=START_LIMIT,
        argv=(site.python, "-m", "rolloutfleet_proxy", "--settings", str(file)),
        url=site.url(name),
        ready_path="/ready",
        stop_grace=spec.disruption.drain_timeout + 10.0,
        files=((file, settings.model_dump_json(indent=1, exclude_none=True)),),
    )


def _proxy_settings(site: LocalSite, spec: FleetSpec, ordinal: int) -> ProxySettings:
    """What the proxy of that ordinal is told."""
    return proxy_settings(
        site.fleet,
        spec,
        tokenizer=None if site.model_path is None else str(site.model_path),
        ordinal=ordinal,
        replicas=spec.proxies.replicas,
        host=LOOPBACK,
        port=site.ports[proxy_name(ordinal)],
        state_dir=site.folder.store(ordinal),
        dump_dir=site.folder.dumps(ordinal),
        kept_dir=site.folder.kept(ordinal),
        peers=PeersSettings(
            template=f"http://{LOOPBACK}:{{port}}",
            ports=[site.ports[proxy_name(peer)] for peer in range(spec.proxies.replicas)],
        ),
        gateway_url=site.url(GATEWAY),
        gateway_api_key_file=site.engine_key_file,
        engine_urls=site.engine_urls(spec),
        admin_key_file=site.folder.admin_key,
    )
