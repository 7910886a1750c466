"""One thread encodes, for all who ask; it is replaced in time, and nobody waits for a long text."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_proxy.tokens import encoding
from rolloutfleet_proxy.tokens.encoding import LONG, EncoderFailed, EncodingThread


class Encoder:
    """Says what it got, and notes in which threads."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self, text: str) -> bytes:
        self.threads.append(threading.current_thread())
        return text.encode()


def test_everybody_gets_the_own_answer_from_the_one_thread() -> None:
    encoder = Encoder()
    encode = EncodingThread(encoder)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: encode(str(number)), range(2_000)))
    assert answers == [str(number).encode() for number in range(2_000)]
    assert len(set(encoder.threads)) == 1 and encoder.threads[0] is not threading.current_thread()


def test_another_thread_takes_its_place_after_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHARACTERS", 100)
    encoder = Encoder()
    encode = EncodingThread(encoder)
    for _ in range(10):
        encode("x" * 30)
    first, second, third, fourth = dict.fromkeys(encoder.threads)
    assert [encoder.threads.count(thread) for thread in (first, second, third, fourth)] == [3, 3, 3, 1]
    for thread in (first, second, third):
        thread.join(PATIENCE)
    assert [thread.is_alive() for thread in (first, second, third, fourth)] == [False, False, False, True]


def test_a_text_longer_than_that_is_encoded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHARACTERS", 100)
    assert EncodingThread(Encoder())("x" * 200) == b"x" * 200


def test_a_long_text_has_a_thread_to_itself_and_nobody_waits_for_it() -> None:
    begun, go_on = threading.Event(), threading.Event()
    encoder = Encoder()

    def wait_if_long(text: str) -> bytes:
        if len(text) >= LONG:
            begun.set()
            assert go_on.wait(PATIENCE)
        return encoder(text)

    encode = EncodingThread(wait_if_long)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(encode, "x" * LONG)
        assert begun.wait(PATIENCE)
        assert encode("short") == b"short"
        go_on.set()
        assert len(long.result(PATIENCE)) == LONG
    short, alone = encoder.threads
    alone.join(PATIENCE)
    assert short.is_alive() and not alone.is_alive()


@pytest.mark.parametrize("error", [ValueError("no"), BaseException("a panic in Rust")])
@pytest.mark.parametrize("length", [1, LONG])
def test_an_error_reaches_who_asked_and_nobody_else(error: BaseException, length: int) -> None:
    def fail_on_x(text: str) -> bytes:
        if text[0] == "x":
            raise error
        return text.encode()

    encode = EncodingThread(fail_on_x)
    with pytest.raises(EncoderFailed, match=str(error)):
        encode("x" * length)
    assert encode("y") == b"y"


def test_the_thread_ends_with_what_it_belongs_to() -> None:
    encoder = Encoder()
    encode = EncodingThread(encoder)
    encode("x")
    [thread] = encoder.threads
    del encode
    thread.join(PATIENCE)
    assert not thread.is_alive()
