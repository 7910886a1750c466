"""The `rolloutfleet-proxy` command: the parent process. What serves is its child, `worker`."""

import sys
from collections.abc import Sequence

from rolloutfleet.extras import NotInstalled, need
from rolloutfleet_proxy.private_files import make_private
from rolloutfleet_proxy.process.supervisor import Parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until told to stop. Exits with 2 where packages are missing, or the settings or the store can't be used."""
    try:
        need("proxy")
    except NotInstalled as error:
        print(f"rolloutfleet-proxy: {error}", file=sys.stderr)
        sys.exit(2)
    make_private()
    sys.exit(Parent(sys.argv[1:] if arguments is None else arguments).run())
