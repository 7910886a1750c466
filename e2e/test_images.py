"""The images as they run: nobody's user, a read-only root, no capabilities; and together they answer a stock client."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from images import docker as builder
from images.recipes import RECIPES, REPOSITORY, project_version
from tests.unit.images.locks import pinned
from tests.waiting import until
from toolchain.kubernetes.docker.client import Docker

from e2e import containers
from e2e.containers import Host
from e2e.installing import Images

pytestmark = [pytest.mark.no_operator, pytest.mark.timeout(900)]

MEGABYTES = {"proxy": 420, "operator": 420, "gateway": 300, "engine": 330}
"""Unpacked, with a base of 120 MB: what each is now, and a little room."""
TIMEOUT = 240.0
WHO = "import os, pathlib; print(os.getuid(), os.getgid(), pathlib.Path.home(), os.environ['PYTHONDONTWRITEBYTECODE'])"
INSTALLED = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
WRITE = "open('/opt/rolloutfleet/probe', 'w')"

AGENT = """
import json, httpx, openai
admin = {"Authorization": "Bearer " + open("/etc/rolloutfleet/keys/admin-keys").read().strip()}
proxy = httpx.Client(base_url="http://127.0.0.1:8080", headers=admin)
session = proxy.post("/sessions", json={"task_id": "container"}).raise_for_status().json()["sessions"][0]
client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key=session["api_key"])
messages = [{"role": "user", "content": "What is two and two?"}]
answer = client.chat.completions.create(model="simulated", messages=messages, max_tokens=30)
print(json.dumps({"answer": answer.model_dump(), "audit": proxy.get("/audit").json()}))
"""


@pytest.fixture(scope="module")
def built(images: Images) -> dict[str, str]:
    """The images' names, by target. The daemon that built them has them by the same names as the cluster."""
    return asdict(images)


@pytest.fixture
def host(docker: Docker) -> Iterator[Host]:
    with containers.host(dict(os.environ) | docker.environment) as host:
        yield host


@pytest.mark.parametrize("target", RECIPES)
def test_it_runs_as_nobody_and_has_a_home_that_is_there(target: str, built: dict[str, str], host: Host) -> None:
    assert host.run(built[target], "-c", WHO, program="python").split() == ["65532", "65532", "/tmp", "1"]
    label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
    about = host.docker("image", "inspect", "--format", f"{{{{.Config.User}}}} {label}", built[target])
    assert about.split() == ["65532:65532", project_version()]


@pytest.mark.parametrize("target", RECIPES)
def test_its_root_can_not_be_written(target: str, built: dict[str, str], host: Host) -> None:
    with pytest.raises(AssertionError, match="Read-only file system"):
        host.run(built[target], "-c", WRITE, program="python")


@pytest.mark.parametrize("target", RECIPES)
def test_it_holds_what_its_lock_names_and_nothing_else(target: str, built: dict[str, str], host: Host) -> None:
    recipe = RECIPES[target]
    there = {line.lower().replace("_", "-").replace(".", "-") for line in _distributions(host, built[target])}
    locked = {f"{name}=={version}" for name, pins in pinned(recipe.lock).items() for version, _ in pins}
    project = {f"rolloutfleet=={project_version()}"} if recipe.with_project else set()
    assert there == {line.lower().replace(".", "-") for line in locked | project}


def _distributions(host: Host, image: str) -> list[str]:
    return host.run(image, "-I", "-c", INSTALLED, program="python").split()


@pytest.mark.parametrize("target", RECIPES)
def test_it_is_small(target: str, built: dict[str, str], docker: Docker) -> None:
    assert builder.Docker(docker.host).size(built[target]) < MEGABYTES[target] * 1e6


def test_the_operators_help_teaches(built: dict[str, str], host: Host) -> None:
    assert "run" in host.run(built["operator"], "--help")


def test_proxy_gateway_and_engine_answer_a_stock_client_and_end_when_told(
    built: dict[str, str], host: Host, tmp_path: Path
) -> None:
    engine = host.start(built["engine"])
    until(lambda: "ready" in engine.log(), seconds=TIMEOUT, state=engine.log)
    gateway = host.start(
        *(built["gateway"], "--host", "127.0.0.1", "--port", "30001", "--policy", "manual"),
        *("--disable-retries", "--disable-circuit-breaker", "--worker-startup-check-interval", "1"),
        *("--worker-urls", "http://127.0.0.1:30000"),
    )
    proxy = host.start(
        *(built["proxy"], "--settings", "/etc/rolloutfleet/settings.json"),
        mounts={_settings(tmp_path): "/etc/rolloutfleet:ro", _state(tmp_path): "/state"},
    )
    for url, container in (("http://127.0.0.1:30001/readiness", gateway), ("http://127.0.0.1:8080/ready", proxy)):
        until(partial(_answers, host, built["proxy"], url), seconds=TIMEOUT, state=container.log)

    said = json.loads(
        host.run(built["proxy"], "-c", AGENT, program="python", mounts={tmp_path / "etc": "/etc/rolloutfleet:ro"})
    )
    assert said["answer"]["choices"][0]["finish_reason"] in ("stop", "length")
    assert said["audit"]["turns"]["live"] == 1
    assert said["audit"]["balanced"] is True

    for container in (proxy, gateway, engine):
        assert container.stop(patience=30) == 0, container.log()[-2000:]
        assert [line for line in container.changed_files() if line.split()[1] not in _MOUNTED] == []
    assert (tmp_path / "state" / "store").is_dir()


_MOUNTED = {"/state", "/etc", "/etc/rolloutfleet"}


def _settings(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "admin-keys").write_text("a-key-for-the-container-test\n")
    settings = {
        "fleet": "containers",
        "model": "simulated",
        "tokenizer": {"path": "/opt/rolloutfleet/simulated-model", "renderer": "qwen3"},
        "state_dir": "/state",
        "gateway_url": "http://127.0.0.1:30001",
        "engine_urls": ["http://127.0.0.1:30000"],
        "admin_key_file": "/etc/rolloutfleet/keys/admin-keys",
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder


def _state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    tmp_path.parent.chmod(0o755)
    return folder


def _answers(host: Host, image: str, url: str) -> bool:
    asked = f"import httpx; raise SystemExit(httpx.get({url!r}).status_code != 200)"
    try:
        host.run(image, "-c", asked, program="python")
    except AssertionError:
        return False
    return True


def test_a_base_that_is_nowhere_is_named_and_what_helps_is_said(docker: Docker) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "images", "proxy", "--base", "no-such-base:1", *_host(docker)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no-such-base:1" in done.stderr
    assert "--base" in done.stderr
    assert "Traceback" not in done.stderr


def _host(docker: Docker) -> list[str]:
    return ["--host", docker.host] if docker.host else []
