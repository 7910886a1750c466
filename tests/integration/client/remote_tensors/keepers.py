"""Proxies that keep shards, each a process of its own; nothing is generated, so there is no engine behind them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fleets import MODEL, ProxyProcess
from tests.processes import free_ports

from rolloutfleet_engine.model import model_path


@contextlib.contextmanager
def keeping(folder: Path, *, proxies: int = 1, **settings: Any) -> Iterator[list[ProxyProcess]]:
    """So many proxies, until the block ends."""
    (folder / "admin.key").write_text("an-admin-key-for-tests-alone\n")
    *ports, nobodys = free_ports(proxies + 1)
    common = {
        "fleet": "test",
        "model": MODEL,
        "tokenizer": {"path": str(model_path())},
        "replicas": proxies,
        "peers": {"ports": ports},
        "gateway_url": f"http://127.0.0.1:{nobodys}",
        "admin_key_file": str(folder / "admin.key"),
        **settings,
    }
    made = []
    with contextlib.ExitStack() as stack:
        for ordinal, port in enumerate(ports):
            home = folder / f"proxy-{ordinal}"
            own = {"ordinal": ordinal, "port": port, "state_dir": str(home / "state")}
            made.append(ProxyProcess(ordinal, port, home, common | own))
            stack.callback(made[-1].stop)
            made[-1].launch()
        for proxy in made:
            proxy.wait_until_ready()
        yield made
