"""What all tests share."""

import os

from hypothesis import settings
from tests.real.sglang.places import places

HARMONY = "TIKTOKEN_ENCODINGS_BASE"


def pytest_configure() -> None:
    """Let gpt-oss find its vocabulary, which can't be made up: the installed SGLang brings the file along.

    And let no example of hypothesis fail by how long it takes, which depends on what else the machine does. All else is
    as in the profile in force, in CI that of hypothesis for CI.
    """
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")
    found = sorted(places().environment.glob("lib/python3*/site-packages/tml_renderers/data/o200k_base.tiktoken"))
    if found:
        os.environ.setdefault(HARMONY, str(found[0].parent))
