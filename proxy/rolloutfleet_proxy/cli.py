"""The `rolloutfleet-proxy` command: the parent process. What serves is its child, `worker`."""

import sys
from collections.abc import Sequence

from rolloutfleet_proxy.private_files import make_private
from rolloutfleet_proxy.process.supervisor import Parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until told to stop. Exits with 2 where the settings or the store can't be used."""
    make_private()
    sys.exit(Parent(sys.argv[1:] if arguments is None else arguments).run())
