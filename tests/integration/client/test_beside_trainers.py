"""Our base dependencies go together with each trainer's: one environment holds both."""

import json
import re
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from tests.integration.client.trainers import RESOLVED_ON, TRAINERS, Unresolvable, fetch, resolved
from tests.paths import ROOT
from toolchain.environments import NotInstalled

TRL: Final = "trl==1.16.0"


@pytest.mark.parametrize("requirement", TRAINERS)
def test_the_base_resolves_beside(requirement: str) -> None:
    versions = resolved(requirement)
    name, _, version = requirement.partition("==")
    assert versions[name] == version
    assert versions.keys() >= {"httpx", "numpy", "pydantic", "pyyaml", "rich", "safetensors", "typer"}


def test_the_page_names_what_was_resolved() -> None:
    paragraphs = (ROOT / "docs" / "trainers.md").read_text().split("\n\n")
    [said] = [each for each in paragraphs if "goes together with" in each]
    words = " ".join(said.split())
    assert RESOLVED_ON in words
    for requirement in TRAINERS:
        assert requirement.replace("==", " ") in words
    for python in set(TRAINERS.values()):
        assert f"Python {python}" in words


@contextmanager
def index(folder: Path, monkeypatch: pytest.MonkeyPatch, *, page: int, metadata: int = 404) -> Iterator[None]:
    """One that answers with these statuses. Where it has pages, each names one version that may be taken."""
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    versions = dict(re.findall(r"([\w-]+)[>=]=([\w.]+)", " ".join([*base, TRL])))

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, kind, name, *_ = self.path.split("/")
            self.send_response(page if kind == "simple" else metadata)
            self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.end_headers()
            if kind == "simple" and page == 200:
                self.wfile.write(json.dumps(described(name)).encode())

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    def described(name: str) -> dict[str, Any]:
        filename = f"{name}-{versions[name]}-py3-none-any.whl"
        about = {"upload-time": "2026-01-01T00:00:00Z", "size": 1, "hashes": {}, "core-metadata": True}
        file = {"filename": filename, "url": f"{url}/files/{filename}", **about}
        return {"meta": {"api-version": "1.1"}, "name": name, "files": [file]}

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{url}/simple")
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv"))
        monkeypatch.setenv("ROLLOUTFLEET_CACHE", str(folder / "cache"))
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("page", "metadata"), [(401, 404), (403, 404), (503, 404), (200, 403), (200, 503)])
def test_a_refusal_of_the_index_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int, metadata: int
) -> None:
    with index(tmp_path, monkeypatch, page=page, metadata=metadata), pytest.raises(NotInstalled, match=TRL):
        fetch(TRL)


def test_bounds_that_no_version_meets_are_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with index(tmp_path, monkeypatch, page=404):
        fetch(TRL)
        with pytest.raises(Unresolvable, match="No solution found"):
            resolved(TRL)
