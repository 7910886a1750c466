"""What a container's first process is: the kernel drops every signal to it that it has no handler for yet."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from images.recipes import RECIPES
from tests.unit.images.entrypoints import ENTRYPOINTS
from tests.waiting import PATIENCE, until

BIN: Final = Path(sys.executable).parent


@pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux")
@pytest.mark.parametrize("target", RECIPES)
def test_told_to_end_while_its_python_has_not_begun_it_ends_at_once(target: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(3600)")  # Python begins nothing of ours before
    words = [str(BIN / "dumb-init"), *ENTRYPOINTS[target][1:3], str(BIN / ENTRYPOINTS[target][3])]
    namespace = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    started = subprocess.Popen(
        [*namespace, "--pid", "--fork", "--kill-child", *words, *ENTRYPOINTS[target][4:]],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        os.kill(_first_of(started.pid), signal.SIGTERM)
        assert started.wait(timeout=PATIENCE) == 128 + signal.SIGTERM
    finally:
        started.kill()
        started.wait()


def _first_of(unshare: int) -> int:
    """The first process of the new namespace, at the moment when its own child has become another program."""

    def first() -> int | None:
        for first in _children(unshare):
            for child in _children(first):
                if Path(f"/proc/{first}/exe").readlink() != Path(f"/proc/{child}/exe").readlink():
                    return first
        return None

    return int(until(first))


def _children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
