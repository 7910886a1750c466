"""What the tests of a folder need beyond `make setup`, and how to get it: known before the first of them starts.

A tool that is missing fails the whole folder. What is downloaded for some of its tests alone is fetched before them;
where a registry refuses it three times, those tests do not run, and nothing else is left out.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.agents.frameworks import FRAMEWORKS
from tests.agents.install import python_of
from tests.cluster import apiserver
from tests.engine.sglang import places
from tests.integration.client import trainers
from toolchain import typescript
from toolchain.environments import NotInstalled
from toolchain.kubernetes import lifecycle
from toolchain.kubernetes.binaries import MODULE_OF
from toolchain.kubernetes.settings import Settings

TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, or a right, that is there or not."""

    name: str
    present: Callable[[], bool]
    how: str
    """What makes it present: a command."""


@dataclass(frozen=True, slots=True)
class Download:
    """What a registry serves, kept in the cache once it was fetched."""

    fetch: Callable[[], object]
    """Raises NotInstalled or NoCompiler."""
    needed_by: tuple[str, ...]
    """Node ids of tests, or their beginnings: what pytest takes for `--deselect`."""


def _program(name: str, package: str) -> Tool:
    return Tool(name, lambda: shutil.which(name) is not None, f"apt-get install {package}")


def _has_kubernetes() -> bool:
    try:
        return bool(apiserver.programs())
    except apiserver.NoPrograms:
        return False


def _may_mount() -> bool:
    """A container's root may not."""
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


_CHROMIUM: Final = _program("chromium", "chromium")
_KUBERNETES: Final = (
    Tool("etcd and Kubernetes", _has_kubernetes, f"make cluster (or {apiserver.FOLDER}=FOLDER)"),
    _program("openssl", "openssl"),
)
_DISKS: Final = (
    Tool("root", lambda: os.geteuid() == 0, "sudo make …"),
    Tool("leave to mount", lambda: os.geteuid() != 0 or _may_mount(), "in a container: docker run --privileged"),
)

TOOLS: Final[Mapping[str, Sequence[Tool]]] = {
    "engine": [Tool("the real SGLang", lambda: places.find() is not None, "make sglang (Linux, 10 GB, gcc)")],
    "cluster": [
        *_KUBERNETES,
        Tool("helm", lambda: (MODULE_OF["helm"].built / "helm").exists(), "make cluster"),
    ],
    "e2e": [
        Tool(
            "a cluster",
            lambda: lifecycle.why_not(Settings()) is None,
            "root and apt-get install docker.io iptables debootstrap (or ROLLOUTFLEET_E2E_KUBECONFIG=FILE)",
        )
    ],
    "agents": [],
    "browser": [_CHROMIUM, _program("tmux", "tmux"), _program("node", "nodejs"), _program("npm", "npm")],
    "system": [
        *_DISKS,
        _program("strace", "strace"),
        _program("mkfs.ext4", "e2fsprogs"),
        _program("prometheus", "prometheus"),
        _program("promtool", "prometheus"),
    ],
    "timing": [_CHROMIUM, *_KUBERNETES, *_DISKS],
}
"""By folder of tests/; `e2e` is what is beside it."""

_CLAUDE_CODE: Final = partial(python_of, "claude-agent-sdk")
_LOOP: Final = "tests/agents/test_frameworks.py::test_a_loop_is_captured_as_one_conversation"
_OTHERS: Final = {"openai-agents": ("tests/agents/test_codex.py::test_openai_agents_branches_only_for_a_form",)}

_BESIDE: Final = "tests/integration/client/test_beside_trainers.py::test_the_base_resolves_beside"

DOWNLOADS: Final[Mapping[str, Sequence[Download]]] = {
    "integration": [Download(partial(trainers.fetch, each), (f"{_BESIDE}[{each}]",)) for each in trainers.TRAINERS],
    "engine": [Download(_CLAUDE_CODE, ("tests/engine/examples/test_claude_code.py",))],
    "agents": [
        Download(_CLAUDE_CODE, ("tests/agents/test_claude_code.py",)),
        Download(partial(python_of, "codex"), ("tests/agents/test_codex.py",)),
        *(
            Download(partial(python_of, each.name), (f"{_LOOP}[{each.name}]", *_OTHERS.get(each.name, ())))
            for each in FRAMEWORKS
            if each.core
        ),
    ],
    "browser": [Download(typescript.compiler, ("tests/browser/test_modules.py",))],
}


def missing(folder: str) -> list[str]:
    """What is not there, and how to get it, a line each."""
    return [f"{tool.name} is missing: {tool.how}" for tool in TOOLS.get(folder, ()) if not tool.present()]


def refused(folder: str) -> dict[str, str]:
    """Fetch what a folder's tests need, several at a time; the node ids of those that can't run, and why.

    Another content than the lock's is no refusal: it raises.
    """
    downloads = DOWNLOADS.get(folder, ())
    with ThreadPoolExecutor() as pool:
        refusals = list(pool.map(_refusal, downloads))
    return {
        test: why
        for download, why in zip(downloads, refusals, strict=True)
        if why is not None
        for test in download.needed_by
    }


def _refusal(download: Download) -> str | None:
    why = None
    for _ in range(TRIES):
        try:
            download.fetch()
        except (NotInstalled, typescript.NoCompiler) as error:
            why = str(error)
            if "Hash mismatch" in why:
                raise
        else:
            return None
    return why
