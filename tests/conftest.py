"""What all tests share."""

import os

from tests.real.sglang.places import places

HARMONY = "TIKTOKEN_ENCODINGS_BASE"


def pytest_configure() -> None:
    """Let gpt-oss find its vocabulary, which can't be made up: the installed SGLang brings the file along."""
    found = sorted(places().environment.glob("lib/python3*/site-packages/tml_renderers/data/o200k_base.tiktoken"))
    if found:
        os.environ.setdefault(HARMONY, str(found[0].parent))
