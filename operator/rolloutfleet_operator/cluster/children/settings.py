"""The ConfigMap with the settings of a fleet's proxies.

It is mounted as a folder, so a change reaches running pods without a restart. Settings that a proxy reads only at its
start are hashed into the pod's template (`restart_hash`), so that a change of one makes the pods outdated.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolloutfleet.settings import LIVE_SETTINGS, LogSettings, PeersSettings, ProxySettings
from rolloutfleet.spec import SIMULATED_MODEL
from rolloutfleet_operator.cluster.children import names
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import Component, Fleet, child
from rolloutfleet_operator.cluster.children.pods import Manifest
from rolloutfleet_operator.cluster.children.secret import ADMIN_KEYS, CONTROL_KEY, ENGINE_KEY
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.policy.workers import engines_by_address
from rolloutfleet_operator.proxy_settings import proxy_settings as settings_by_spec


def proxy_settings(fleet: Fleet, operator: OperatorSettings, *, peers: int, lost: Sequence[int] = ()) -> ProxySettings:
    """What the proxies are told; each adds its ordinal by the environment. Raises pydantic.ValidationError.

    `peers` is how many proxies own sessions now, `lost` has the ordinals of those on lost nodes.
    """
    spec = fleet.spec
    domain = operator.host(fleet.headless, fleet.namespace)
    shipped = spec.model == SIMULATED_MODEL and spec.tokenizer.path is None
    return settings_by_spec(
        fleet.name,
        spec,
        tokenizer=names.SIMULATED_MODEL_PATH if shipped else None,
        fleet_uid=fleet.uid,
        adopt=spec.proxies.storage.adopt,
        replicas=max(peers, 1),
        host="0.0.0.0",
        port=names.PROXY_PORT,
        leave_time=names.LEAVE_TIME,
        state_dir=Path(names.STATE_PATH),
        dump_dir=Path(names.DUMPS_PATH),
        peers=PeersSettings(template=f"http://{fleet.proxies}-{{ordinal}}.{domain}:{{port}}"),
        gateway_url=f"http://{operator.host(fleet.gateway, fleet.namespace)}:{names.GATEWAY_PORT}",
        gateway_api_key_file=Path(ENGINE_KEY.file) if spec.gateway.api_key_secret else None,
        gateway_control_key_file=Path(CONTROL_KEY.file) if engines_by_address(spec) is None else None,
        engine_urls=engines_by_address(spec) or [],
        admin_key_file=Path(ADMIN_KEYS.file),
        log=LogSettings(format="json"),
        generation=fleet.generation,
        checked=True,
        **({"lost_proxies": list(lost)} if lost else {}),
    )


def restart_hash(settings: ProxySettings) -> str:
    """Changes exactly when a running proxy would have to be restarted to take the settings."""
    return content_hash({name: value for name, value in _written(settings).items() if name not in LIVE_SETTINGS})


def _written(settings: ProxySettings) -> dict[str, Any]:
    """What was decided. The rest is left to the proxy's own defaults, so that a setting which only this release has is
    said to nobody, and changes no pod, until somebody sets it.

    In what comes from the resource the API server has filled in the defaults: there it is what differs from them.
    """
    dump = settings.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    resource = {"sessions": settings.sessions, "tokenizer": settings.tokenizer}
    later = {name: getattr(settings, name) for name in ("models", "compatibility", "weights", "inspect", "memory")}
    dump |= {name: part.model_dump(mode="json", exclude_defaults=True) for name, part in {**resource, **later}.items()}
    return {name: value for name, value in dump.items() if value or name not in later}


def set_here(settings: ProxySettings) -> frozenset[str]:
    """The settings that the operator decides; the environment of a podTemplate may set the others."""
    return frozenset((*settings.model_fields_set, "ordinal", "service_url")) - {"log"}


def config_map(fleet: Fleet, settings: ProxySettings) -> Manifest:
    text = json.dumps(_written(settings), indent=1)
    notes = {names.GENERATION: str(fleet.generation)}
    return child(fleet, "ConfigMap", fleet.settings, Component.PROXY, notes, data={names.SETTINGS_FILE: f"{text}\n"})
