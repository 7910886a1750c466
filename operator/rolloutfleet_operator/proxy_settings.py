"""The settings of a proxy that follow from its fleet's spec, alike on a cluster and on one machine; addresses and paths
are added there.
"""

from typing import Any, Final

from rolloutfleet.settings import MemorySettings, ProxySettings
from rolloutfleet.spec import SIMULATED_MODEL, FleetSpec, sessions_in_force
from rolloutfleet.spec_for_proxies import TokenizerSpec

_SIMULATED_RENDERER: Final = "qwen3"
_SHORTEST_DRAIN: Final = 0.001


def proxy_settings(name: str, spec: FleetSpec, *, tokenizer: str | None, **where: Any) -> ProxySettings:
    """`tokenizer` is its directory, where that is known already. Raises pydantic.ValidationError."""
    return ProxySettings(
        fleet=name,
        model=spec.model,
        models=spec.models,
        compatibility=spec.compatibility,
        weights=spec.weights,
        tokenizer=_tokenizer(spec, tokenizer),
        ephemeral=spec.proxies.storage.ephemeral,
        public_url=spec.endpoint.public_url,
        sessions=sessions_in_force(spec),
        inspect=spec.inspect,
        memory=MemorySettings(rss_budget=spec.memory.rss_budget),
        drain_timeout=max(spec.disruption.drain_timeout, _SHORTEST_DRAIN),
        **where,
    )


def _tokenizer(spec: FleetSpec, path: str | None) -> TokenizerSpec:
    asked = spec.tokenizer
    if path is None or asked.hub is not None:
        return asked
    ships_with_engine = spec.model == SIMULATED_MODEL and asked.path is None
    renderer = asked.renderer or (_SIMULATED_RENDERER if ships_with_engine else None)
    return asked.model_copy(update={"path": path, "renderer": renderer})
