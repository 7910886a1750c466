"""The engines of a gateway in a pod, by the name service."""

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_operator.engine_addresses import GONE, Absences, let_go, lookup

URLS = st.frozensets(st.sampled_from("abc"))


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """The name service answers so, or raises that."""

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_addresses_are_urls_of_the_engines_port(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("10.0.0.2", 30000)), (10, 1, 6, "", ("fd00::1", 30000, 0, 0))]
    answering(monkeypatch, [*found, found[0]])
    assert lookup("engines", 30000) == frozenset(("http://10.0.0.2:30000", "http://[fd00::1]:30000"))


def test_a_name_that_is_not_there_is_told_from_a_service_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, socket.gaierror(socket.EAI_NONAME, "no such name"))
    assert lookup("engines", 30000) == frozenset()
    answering(monkeypatch, socket.gaierror(socket.EAI_AGAIN, "try again"))
    assert lookup("engines", 30000) is None


def test_a_new_engine_that_was_never_found_is_kept() -> None:
    absences = Absences(frozenset())
    assert [absences.gone(frozenset("a"), frozenset()) for _ in range(3 * GONE)] == [frozenset()] * 3 * GONE


class Enough(BaseException):
    """Ends the looks."""


def test_looks_go_on_whatever_comes_of_one_and_no_key_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, [])
    looks: Iterator[Any] = iter([RuntimeError("Bearer secret"), *[{"http://10.0.0.2:1": "id"}] * GONE])
    removed: list[str] = []

    def listed() -> dict[str, str]:
        look = next(looks, Enough())
        if isinstance(look, BaseException):
            raise look
        return dict(look)

    monkeypatch.setattr(time, "sleep", lambda _: None)
    gateway: Any = SimpleNamespace(listed=listed, remove=removed.append)
    with pytest.raises(Enough):
        let_go("engines", 1, gateway, frozenset(["http://10.0.0.2:1"]))
    said = capsys.readouterr().err
    assert removed == ["id"] and "RuntimeError" in said and "secret" not in said


@given(st.lists(st.tuples(URLS, st.none() | URLS), max_size=20))
def test_an_engine_is_let_go_of_when_so_many_answers_in_a_row_lack_it_and_not_before(
    looks: list[tuple[frozenset[str], frozenset[str] | None]],
) -> None:
    known = frozenset("a")
    absences, missed = Absences(known), dict.fromkeys("abc", 0)
    for listed, found in looks:
        gone = absences.gone(listed, found)
        if found is not None:
            known = (known & listed) | found
            missed = {url: (missed[url] + 1) * (url in listed & known and url not in found) for url in missed}
        assert gone == {url for url, times in missed.items() if times >= GONE}
