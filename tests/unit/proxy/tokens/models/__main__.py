"""`python -m tests.unit.proxy.tokens.models`: measures every chat format, and writes the table of docs/models.md."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.unit.proxy.tokens.models.families import chat_format
from tests.unit.proxy.tokens.models.measuring import measured
from tests.unit.proxy.tokens.models.page import NAMES, PAGE, row, with_rows
from toolchain import harmony

if __name__ == "__main__":
    os.environ.setdefault(harmony.VARIABLE, str(harmony.folder()))
    with TemporaryDirectory() as folder:
        told = {name: row(name, measured(name, chat_format(name, Path(folder)))) for name in NAMES}
    PAGE.write_text(with_rows(PAGE.read_text(), told))
