"""Files of a proxy are its own user's: what it makes from its start on, and what an earlier release left."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

OTHERS: Final = 0o077
"""The rights of group and others."""


def make_private() -> None:
    """From now on this process, and those that it starts, make files and folders for their own user alone."""
    os.umask(OTHERS)


def tighten(paths: Iterable[Path]) -> None:
    """Take their rights from group and others. What is not there, is a link, or is somebody else's stays as it is: a
    volume's root, say, whose owner the kubelet chose."""
    for path in paths:
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            if mode & OTHERS and not path.is_symlink():
                path.chmod(mode & ~OTHERS & 0o7777)
