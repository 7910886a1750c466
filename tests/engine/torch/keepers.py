"""Proxies that keep tensors, as the processes know them that use them."""

from dataclasses import dataclass
from typing import Any

from rolloutfleet.remote_tensors import FetchBuffer, RemoteTensors


@dataclass(frozen=True)
class Keepers:
    """The proxies of a fleet, its engine behind them."""

    urls: list[str]
    key: str

    def tensors(self, **options: Any) -> RemoteTensors:
        return RemoteTensors(self.urls, self.key, **{"buffer": FetchBuffer(), **options})
