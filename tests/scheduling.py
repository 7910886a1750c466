"""In which order files are run, and which of them by one process."""

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER: Final = ("tests/real/", "tests/proxy/tokens/")
"""Each of these folders is run by one process, for what its files share: SGLang takes a minute to start, the chat
formats of all families ten seconds to load."""
SLOWEST: Final = (
    "tests/real/",
    "tests/kills/test_killer.py",
    "tests/capture/test_kills.py",
    "tests/operator/cluster/test_on_an_api_server.py",
    "tests/capture/test_emptying.py",
    "tests/capture/test_faults.py",
    "tests/capture/test_cleanup_faults.py",
    "tests/capture/test_restarts.py",
    "tests/agents/test_frameworks.py",
    "tests/agents/test_claude_code.py",
    "tests/agents/test_codex.py",
    "tests/benchmarks/test_reclaimed.py",
    "tests/capture/test_soak.py",
    "tests/capture/test_dumps.py",
    "tests/client/test_files.py",
    "tests/client/fleet/test_killed_proxies.py",
    "tests/capture/test_emptying_long_sessions.py",
    "tests/client/test_cli_with_a_fleet.py",
    "tests/client/fleet/test_weight_updates.py",
    "tests/client/test_torch.py",
    "tests/capture/test_cleanup.py",
    "tests/capture/test_connections.py",
    "tests/proxy/test_accounting.py",
    "tests/operator/test_local.py",
    "tests/client/fleet/test_docs.py",
    "tests/client/fleet/test_blocking.py",
    "tests/fuzz/test_fuzz.py",
    "tests/client/test_cli.py",
    "tests/benchmarks/test_programs.py",
    "tests/client/remote_tensors/test_client.py",
    "tests/client/test_cli_show.py",
    "tests/client/inspect/test_in_a_browser.py",
    "tests/capture/test_shards.py",
    "tests/benchmarks/test_compared.py",
    "tests/benchmarks/test_against.py",
    "tests/capture/test_secrets.py",
    "tests/proxy/engine/test_generation.py",
    "tests/capture/test_lost_answers.py",
    "tests/capture/test_disk_full.py",
    "tests/proxy/test_caches.py",
    "tests/capture/test_gateway_counts.py",
)
"""They begin first, so that none is left at the end while other processes have nothing to do. They are marked `slow`:
`make test-fast` leaves them out. What a run prints of the slowest files (`tests/durations.py`) says when this no longer
fits."""
_ORDER: Final = (*SLOWEST, *(folder for folder in TOGETHER if folder not in SLOWEST))


def scope(nodeid: str) -> str:
    """What one process runs together: a file, or all that share a folder of `TOGETHER`."""
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def place(nodeid: str) -> int:
    """Tests are sorted by it: the slowest first, then what is run together; the rest stays as it was collected."""
    return _ORDER.index(found) if (found := scope(nodeid)) in _ORDER else len(_ORDER)


def is_slow(nodeid: str) -> bool:
    """Whether it is in one of the slowest files."""
    return scope(nodeid) in SLOWEST


def scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """Gives processes what they run together, in the order of the collection."""
    config.option.loadscopereorder = False
    made = LoadFileScheduling(config, log)
    made._split_scope = scope
    return made
