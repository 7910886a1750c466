"""The vocabulary of gpt-oss, `o200k_base.tiktoken`: `python -m toolchain.harmony` fetches it once for all clones.

`openai_harmony` checks the file's hash, so none can be made up for tests. The crate `tiktoken-rs` ships the real one.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from toolchain.cache import alone, appearing, cache_root

FILE = "o200k_base.tiktoken"
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
MANIFEST = """[package]
name = "harmony"
version = "0.0.0"
edition = "2021"
[dependencies]
tiktoken-rs = "=0.7.0"
"""


class NoVocabulary(Exception):
    """The file could not be had; the message says what is missing."""


def folder() -> Path:
    """Where the file stands once it was fetched: what TIKTOKEN_ENCODINGS_BASE is set to."""
    return cache_root() / f"harmony-{SHA256[:12]}"


def fetched() -> bool:
    return (folder() / FILE).is_file()


def fetch() -> Path:
    """The folder with the file, fetched where it is not there yet. Raises NoVocabulary."""
    with alone(cache_root()):
        if not fetched():
            _fetch()
    return folder()


def _fetch() -> None:
    if shutil.which("cargo") is None:
        raise NoVocabulary("fetching it needs cargo. On Debian or Ubuntu: apt-get install cargo")
    with tempfile.TemporaryDirectory() as scratch:
        crate = Path(scratch)
        (crate / "src").mkdir()
        (crate / "src" / "lib.rs").touch()
        (crate / "Cargo.toml").write_text(MANIFEST)
        done = subprocess.run(
            ["cargo", "vendor", "--quiet", "vendored"], cwd=crate, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoVocabulary(f"cargo could not fetch the crate tiktoken-rs: {done.stderr.strip()}")
        file = crate / "vendored" / "tiktoken-rs" / "assets" / FILE
        if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
            raise NoVocabulary(f"the crate tiktoken-rs brought another {FILE} than openai_harmony takes")
        with appearing(folder()) as unfinished:
            shutil.copy(file, unfinished / FILE)


def main() -> None:
    try:
        print(f"The vocabulary of gpt-oss stands in {fetch()}")
    except NoVocabulary as error:
        print(f"The tests of gpt-oss are left out, as its vocabulary is not here: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
