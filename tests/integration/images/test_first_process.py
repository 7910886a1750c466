"""What a container's first process is: the kernel drops every signal to it that it has no handler for yet."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from images.recipes import DOCKERFILE, RECIPES
from tests.unit.images.locks import pinned
from tests.waiting import PATIENCE

BIN: Final = Path(sys.executable).parent
_STAGE: Final = re.compile(r"^FROM \S+ AS (\w+)$(.*?)(?=^FROM |\Z)", re.MULTILINE | re.DOTALL)
ENTRYPOINTS: Final = {
    target: json.loads(words)
    for target, stage in _STAGE.findall(DOCKERFILE.read_text())
    for words in re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE)
}
"""By image."""


def test_every_image_begins_with_the_init_that_its_lock_names() -> None:
    assert set(ENTRYPOINTS) == set(RECIPES)
    for target, words in ENTRYPOINTS.items():
        assert words[:3] == ["dumb-init", "--single-child", "--"], target
        assert "dumb-init" in pinned(RECIPES[target].lock), target


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
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for first in _children(unshare):
            for child in _children(first):
                if Path(f"/proc/{first}/exe").readlink() != Path(f"/proc/{child}/exe").readlink():
                    return first
    raise AssertionError("nothing was started in the new namespace")


def _children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
