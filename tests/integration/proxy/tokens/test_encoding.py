"""The threads that the libraries of tokenizers start in a process."""

import os
from pathlib import Path

import pytest
from tests.apart import run

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.tokens.encoding import ENVIRONMENT

pytest.importorskip("fastokens")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="not Linux")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="neither library starts threads on one core")
def test_the_libraries_start_no_threads_of_their_own() -> None:
    """Those of `fastokens` wait by spinning. Both decide once a process, so it must be said before they encode."""
    assert run(
        "import os",
        "from tests.waiting import until",
        f"from tokenizers import Tokenizer; tokenizer = Tokenizer.from_file({str(model_path() / 'tokenizer.json')!r})",
        "from rolloutfleet_proxy.tokens.encoding import Encoding",
        "threads = lambda: len(os.listdir('/proc/self/task'))",
        "before = threads()",
        "encoding = Encoding(tokenizer)",
        "encoding.ids('a word and more ' * 50_000)",
        "encoding._exact('a word and more ' * 5_000)",
        "encoding.ids('a word')",
        "assert encoding.quick",
        # The encoder's own is there to stay; that of the long text may take a moment to end.
        "until(lambda: threads() == before + 1)",
        "print('one more')",
        without=ENVIRONMENT,
    ) == ["one", "more"]
