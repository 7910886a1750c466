"""Where a fleet is: from a URL, a file, a name; and what is wrong with those that can't be meant."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutfleet.fleet import BadArgument, Whereabouts
from rolloutfleet.fleet import whereabouts as module

URL = "http://127.0.0.1:8080"


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(module.KEY_FILE_VARIABLE, raising=False)


def a_book(folder: Path, *, urls: tuple[str, ...] = (URL,), key: str = "secret\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "admin.key").write_text(key)
    book = folder / "fleet.json"
    proxies = [{"ordinal": ordinal, "url": url, "pid": 1} for ordinal, url in enumerate(urls)]
    book.write_text(json.dumps({"admin_key_file": str(folder / "admin.key"), "proxies": proxies}))
    return book


def test_a_url_and_a_key() -> None:
    found = Whereabouts.from_url(f"{URL}/", admin_key=" secret ")
    assert (found.urls, found.admin_key) == ((URL,), "secret")


def test_the_key_is_read_from_a_file_or_from_the_one_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("new\nold\n")
    assert Whereabouts.from_url(URL, admin_key_file=file).admin_key == "new"
    monkeypatch.setenv(module.KEY_FILE_VARIABLE, str(file))
    assert Whereabouts.from_url(URL).admin_key == "new"
    assert Whereabouts.from_url(URL, admin_key="mine").admin_key == "mine"


def test_the_key_is_in_no_text() -> None:
    found = Whereabouts.from_url(URL, admin_key="secret")
    assert "secret" not in f"{found} {found!r}"
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_local_fleet_by_its_file_its_folder_or_by_being_there(tmp_path: Path) -> None:
    book = a_book(tmp_path / ".rolloutfleet" / "math")
    for path in (book, str(book), book.parent, None):
        found = Whereabouts.from_file(path)
        assert (found.urls, found.admin_key) == ((URL,), "secret")


def test_a_file_that_changed_is_read_again_and_one_that_is_gone_is_no_harm(tmp_path: Path) -> None:
    found = Whereabouts.from_file(a_book(tmp_path))
    a_book(tmp_path, urls=(URL, "http://127.0.0.1:8081"))
    assert found.again().urls == (URL, "http://127.0.0.1:8081")
    (tmp_path / "fleet.json").unlink()
    assert found.again() == found


def test_engines_of_a_local_fleet_have_the_key_that_its_file_names(tmp_path: Path) -> None:
    book = a_book(tmp_path)
    key = tmp_path / "engine.key"
    engines = {"engines": [{"url": URL}], "engine_key_file": str(key)}
    book.write_text(json.dumps(json.loads(book.read_text()) | engines))
    found = Whereabouts.from_file(book)
    with pytest.raises(BadArgument, match="the engine key file"):
        found.engines()
    key.write_text("a key\n")
    [engine] = found.engines()
    assert (engine.url, engine.headers) == (URL, {"authorization": "Bearer a key"})
    assert "a key" not in f"{engine} {engine!r}"
    assert Whereabouts.from_url(URL, admin_key="x").engines() == ()


def test_a_name_on_kubernetes_is_its_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Whereabouts.on_kubernetes("math", namespace="training", admin_key="secret")
    assert found.urls == ("http://math.training.svc",)
    (tmp_path / "namespace").write_text("mine\n")
    (tmp_path / "admin-keys").write_text("mounted\n")
    monkeypatch.setattr(module, "_NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.setattr(module, "MOUNTED_KEYS", tmp_path / "admin-keys")
    found = Whereabouts.on_kubernetes("math")
    assert (found.urls, found.admin_key) == (("http://math.mine.svc",), "mounted")


def test_what_cannot_be_meant_names_the_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NAMESPACE_FILE", tmp_path / "none")
    monkeypatch.setattr(module, "MOUNTED_KEYS", tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "text.json").write_text("[]")
    mistakes: list[tuple[str, Callable[[], object]]] = [
        ("url", lambda: Whereabouts.from_url("localhost:8080", admin_key="x")),
        ("admin_key", lambda: Whereabouts.from_url(URL)),
        ("admin_key", lambda: Whereabouts.from_url(URL, admin_key="x", admin_key_file="y")),
        ("admin_key", lambda: Whereabouts.from_url(URL, admin_key=" ")),
        ("admin_key_file", lambda: Whereabouts.from_url(URL, admin_key_file=tmp_path / "none")),
        ("admin_key_file", lambda: Whereabouts.from_url(URL, admin_key_file=tmp_path / "empty")),
        ("path", lambda: Whereabouts.from_file(tmp_path / "none.json")),
        ("path", lambda: Whereabouts.from_file(tmp_path / "text.json")),
        ("path", lambda: Whereabouts.from_file()),
        ("path", lambda: Whereabouts.from_file(a_book(tmp_path / "x", urls=()))),
        ("name", lambda: Whereabouts.on_kubernetes("a/b", namespace="x", admin_key="x")),
        ("namespace", lambda: Whereabouts.on_kubernetes("math", admin_key="x")),
        ("admin_key_file", lambda: Whereabouts.on_kubernetes("math", namespace="x")),
    ]
    for argument, wrong in mistakes:
        with pytest.raises(BadArgument) as error:
            wrong()
        assert error.value.argument == argument, str(error.value)


def test_with_several_fleets_here_one_has_to_be_named(tmp_path: Path) -> None:
    for name in ("math", "code"):
        a_book(tmp_path / ".rolloutfleet" / name)
    with pytest.raises(BadArgument, match=r"code.*math"):
        Whereabouts.from_file()
