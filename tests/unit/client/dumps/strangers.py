"""What is no dump and lies where dumps lie: each is made under a name that a dump could have."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.unit.client.dumps.samples import sample

SECRET: Final = "a secret beside the folder"


def _link(file: Path) -> None:
    secret = file.parent.parent / "secret"
    secret.write_text(SECRET)
    file.symlink_to(secret)


def _link_to_a_dump(file: Path) -> None:
    whole = file.parent.parent / "whole"
    whole.write_bytes(sample())
    file.symlink_to(whole)


def _dangling(file: Path) -> None:
    file.symlink_to(file.parent / "nothing")


def _socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        # The path of one is short.
        descriptor = os.open(file.parent, os.O_RDONLY)
        try:
            bound.bind(f"/proc/self/fd/{descriptor}/{file.name}")
        finally:
            os.close(descriptor)


def _sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(2 << 30)


def _sparse_behind_its_head(file: Path) -> None:
    content = sample()
    file.write_bytes(content[: content.index(b"\n") + 1])
    with file.open("ab") as opened:
        opened.truncate(2 << 30)


def _long_head(file: Path) -> None:
    file.write_bytes(sample().replace("tâche".encode(), b"t" * (300 << 10)))


def _long_name(file: Path) -> None:
    file.write_bytes(sample().replace("tâche".encode(), b"t" * 2000))


def _half_a_letter(file: Path) -> None:
    file.write_bytes(sample().replace("tâche".encode(), b"t\\ud83d"))


def _half_a_letter_in_bytes(file: Path) -> None:
    file.write_bytes(sample().replace("tâche".encode(), b"t\xed\xa0\xbd"))


def _other_text(file: Path) -> None:
    file.write_bytes(sample().replace("tâche".encode(), b"t\xff"))


def _deep(file: Path) -> None:
    file.write_bytes(b'{"format":' + b"[" * 100_000 + b',"turns":[\n')


IRREGULAR: Final[dict[str, Callable[[Path], None]]] = {
    "a link": _link,
    "a link to a dump": _link_to_a_dump,
    "a link to nothing": _dangling,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a folder": Path.mkdir,
}
BAD_HEADS: Final[dict[str, Callable[[Path], None]]] = {
    "2 GiB of nothing": _sparse,
    "a long head": _long_head,
    "a long name": _long_name,
    "half a letter": _half_a_letter,
    "half a letter in bytes": _half_a_letter_in_bytes,
    "other text": _other_text,
    "a deep head": _deep,
    "nothing": Path.touch,
}
BAD_LINES: Final[dict[str, Callable[[Path], None]]] = {"2 GiB of nothing behind a head": _sparse_behind_its_head}
