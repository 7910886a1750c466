"""Small disks of their own: one in memory, or a file with a file system in it."""

import contextlib
import errno
import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import psutil
import pytest
from tests.waiting import until

Kind = Literal["tmpfs", "ext4"]

_SIZES: Final = (2**20, 2**16, 2**12, 1)


@contextlib.contextmanager
def small_disk(folder: Path, *, megabytes: int, kind: Kind = "tmpfs") -> Iterator[Path]:
    """A disk mounted on this folder, until the block ends. Fails the test where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder.with_name(f"{folder.name}.img")
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    else:
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        image.unlink(missing_ok=True)
        pytest.fail(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        unmount(folder)
        image.unlink(missing_ok=True)


def unmount(folder: Path) -> None:
    """Take a disk away, once nothing holds it: the files of a killed process are closed a moment after it is gone, and
    those of a connection to a store in this process only when the object is freed (its statements outlive `close()`).
    """

    def is_unmounted() -> bool:
        gc.collect()
        return subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0

    try:
        until(is_unmounted)
    except AssertionError:
        held = list(_holders(folder))
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # else no later run can tidy up
        pytest.fail(f"it can't be unmounted; held by {held}")


def _holders(folder: Path) -> Iterator[tuple[int, str]]:
    """(process id, file) of what is open below a folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            for file in process.open_files():
                if file.path.startswith(f"{folder}/"):
                    yield process.pid, file.path


def fill(file: Path) -> None:
    """Fill the disk that a file is on, to the last byte."""
    with file.open("ab", buffering=0) as filler:
        for size in _SIZES:
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
