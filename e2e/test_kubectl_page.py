"""The commands of docs/kubectl.md work, in their order, as they stand there."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from toolchain.kubernetes.kubectl import Kubectl

from e2e.installing import Operator

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PAGE: Final = (REPOSITORY / "docs" / "kubectl.md").read_text()
SECTIONS: Final = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
SECONDS: Final = 400
"""For the commands of one section."""


def commands(section: str) -> str:
    return "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))


def environment(namespace: Kubectl, folder: Path) -> dict[str, str]:
    """As a user has it: a kubeconfig whose namespace is the test's own, and the programs on PATH."""
    config = folder / "kubeconfig"
    config.write_bytes(namespace.kubeconfig.read_bytes())
    config.chmod(0o600)
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), str(namespace.program.parent), os.environ.get("PATH", "")]
    )
    own = {**os.environ, "KUBECONFIG": str(config), "PATH": path}
    if namespace.context:
        run(f"kubectl config use-context {namespace.context}", own)
    run(f"kubectl config set-context --current --namespace={namespace.namespace}", own)
    return own


def run(script: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=REPOSITORY,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_page_can_be_followed_from_top_to_bottom(operator: Operator, namespace: Kubectl, tmp_path: Path) -> None:
    own = environment(namespace, tmp_path)
    said = {title: run(commands(text), own) for title, text in SECTIONS}
    assert "staleAfter" in said["Make it"]
    assert "demo-proxy-1" in said["Look at it"]
    assert '"ordinal":1' in said["Use it"]
    assert "refused" in said["Change it"]
    assert "ephemeral can't change" in said["Change it"]
    assert "state-demo-proxy-0" in said["Delete it"]
