"""A base image where none can be pulled: Debian 12 with Python 3.11, from Debian's packages. Needs root."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from images.docker import Docker

SUITE: Final = "bookworm"
IMAGE: Final = f"rolloutfleet-base:{SUITE}"
PACKAGES: Final = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
TRIMMED: Final = (
    *("var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*", "var/cache/debconf/*", "usr/share/locale/*"),
    *("usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/lintian/*", "tmp/*", "dev/*"),
)


class NoBase(Exception):
    """The base image can't be made here."""


def make(docker: Docker, *, mirror: str | None) -> str:
    """The image's name; made only where it is not there yet. Raises NoBase and DockerFailed."""
    if docker.has(IMAGE):
        return IMAGE
    if shutil.which("debootstrap") is None:
        raise NoBase("debootstrap is missing. On Debian or Ubuntu: apt-get install debootstrap")
    if os.geteuid() != 0:
        raise NoBase("debootstrap needs root; or name an image by --base")
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-base-") as folder:
        root = Path(folder) / "root"
        _bootstrap(root, mirror)
        with tempfile.TemporaryFile() as archive:
            subprocess.run(
                ["tar", "--create", "--numeric-owner", "--directory", str(root), "."], stdout=archive, check=True
            )
            archive.seek(0)
            docker.import_root(
                archive, image=IMAGE, changes=["ENV PATH=/usr/local/bin:/usr/bin:/bin", 'CMD ["python3"]']
            )
    return IMAGE


def _bootstrap(root: Path, mirror: str | None) -> None:
    asked = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    done = subprocess.run([*asked, *([mirror] if mirror else [])], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
        raise NoBase(f"debootstrap failed:\n{said}")
    for pattern in TRIMMED:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
