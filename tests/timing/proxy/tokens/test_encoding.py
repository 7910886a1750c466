"""What the quick encoder keeps resident."""

from pathlib import Path

import pytest
from tests.apart import run

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.tokens.encoding import ENVIRONMENT

pytest.importorskip("fastokens")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="not Linux")
def test_what_fastokens_remembers_is_bounded() -> None:
    """By itself it takes 100 MB more for this; each word is one that it did not meet before."""
    [grown] = run(
        "import base64, os, random",
        f"from tokenizers import Tokenizer; tokenizer = Tokenizer.from_file({str(model_path() / 'tokenizer.json')!r})",
        "from rolloutfleet_proxy.tokens.encoding import Encoding",
        "resident = lambda: int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')",
        "encoding, draw = Encoding(tokenizer), random.Random(1)",
        "before = resident()",
        "texts = (base64.b64encode(draw.randbytes(6_000)).decode() for _ in range(1_500))",
        "for text in texts: encoding.ids(text)",
        "assert encoding.quick",
        "print(resident() - before)",
        without=ENVIRONMENT,
    )
    assert int(grown) < 60_000_000
