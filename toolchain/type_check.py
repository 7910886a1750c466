"""mypy over the whole project: `python -m toolchain.type_check`. All clones share what it knows, by the files' hashes.

One at a time: two that write into one cache leave what neither of them saw, and the errors of that stay in it.
"""

import os
import subprocess
import sys

from toolchain.cache import alone, cache_root


def main() -> None:
    cache = cache_root() / "types"
    with alone(cache):
        command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", os.fspath(cache)]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
