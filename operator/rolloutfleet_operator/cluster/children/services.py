"""The Services of a fleet."""

from rolloutfleet_operator.cluster.children.names import (
    ENGINE_PORT,
    GATEWAY_PORT,
    PROXY_PORT,
    SERVICE_PORT,
    Component,
    Fleet,
    metadata,
    selector,
)
from rolloutfleet_operator.cluster.children.pods import Manifest


def proxies_by_name(fleet: Fleet) -> Manifest:
    """Each proxy under its own name, unready ones too: sessions have one owner, and others pass calls on to it."""
    return _service(fleet, fleet.headless, Component.PROXY, PROXY_PORT, clusterIP="None", publishNotReadyAddresses=True)


def ready_proxies(fleet: Fleet) -> Manifest:
    """Any ready proxy: where sessions are started."""
    return _service(fleet, fleet.service, Component.PROXY, SERVICE_PORT, type="ClusterIP")


def gateway(fleet: Fleet) -> Manifest:
    return _service(fleet, fleet.gateway, Component.GATEWAY, GATEWAY_PORT, type="ClusterIP")


def engines(fleet: Fleet) -> Manifest:
    """Managed engines; the gateway finds them by their labels."""
    return _service(fleet, fleet.engines, Component.ENGINE, ENGINE_PORT, type="ClusterIP")


def _service(fleet: Fleet, name: str, component: Component, port: int, **more: object) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(fleet, name, component),
        "spec": {
            "selector": selector(fleet, component),
            "ports": [{"name": "http", "port": port, "targetPort": "http", "protocol": "TCP"}],
            **more,
        },
    }
