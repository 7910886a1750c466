"""The types of the page's own code, by the TypeScript compiler."""

from pathlib import Path

from tests.paths import ROOT
from toolchain.typescript import checked

MODULES = sorted((ROOT / "client" / "rolloutfleet" / "inspect" / "static").glob("*.js"))


def test_the_types_of_all_modules_fit() -> None:
    assert checked() == ""
    assert {Path(file).name for file in checked("--listFilesOnly").split()} >= {file.name for file in MODULES}
