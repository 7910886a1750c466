"""The `rolloutfleet-operator` command."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from rolloutfleet.extras import NotInstalled, need
from rolloutfleet.installed import own_version
from rolloutfleet_operator import crd
from rolloutfleet_operator.cluster import settings

_ABOUT: Final = """\
The operator of RolloutFleet: it creates proxies, a gateway and, if asked, engines for RolloutFleet resources, and keeps
them as specified."""
_RUN: Final = """\
Manage the fleets of a cluster. In a pod it uses the pod's service account, elsewhere the kubeconfig (KUBECONFIG).
Of the operators that share a Lease, one acts and the others wait. Every flag can be set in the environment:
--proxy-image is ROLLOUTFLEET_OPERATOR_PROXY_IMAGE; flags override the environment."""
_EXAMPLES: Final = """\
examples:
  rolloutfleet-operator crd | kubectl apply -f -           make the resource known to a cluster
  rolloutfleet-operator run --listen 127.0.0.1:8080        from here, with the kubeconfig
  rolloutfleet-operator run --namespace math --lease-namespace math
                                                           for the fleets of one namespace"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 2 where what was asked for can't be used, with 1 where the operator ended by itself."""
    sys.exit(_main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rolloutfleet-operator",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {own_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    about_run = commands.add_parser("run", help="manage the fleets of a cluster", description=_RUN)
    settings.add_flags(about_run)
    commands.add_parser("crd", help="print the CustomResourceDefinition", description="Print it as YAML.")
    parsed = parser.parse_args(arguments)
    if parsed.command == "crd":
        print(crd.page(), end="")
        return 0
    try:
        given = settings.read(parsed, os.environ)
    except settings.BadSettings as error:
        print(f"rolloutfleet-operator: {error}", file=sys.stderr)
        return 2
    return _run(given)


def _run(given: settings.OperatorSettings) -> int:
    try:
        need("operator")
    except NotInstalled as error:
        print(f"rolloutfleet-operator: {error}", file=sys.stderr)
        return 2
    # Kubernetes' client takes a second to import: `crd` and `--help` need none of it.
    from rolloutfleet_operator.cluster import logs
    from rolloutfleet_operator.cluster.run import CantRun, run

    logs.set_up(given.log_format, given.log_level)
    try:
        asyncio.run(run(given))
    except CantRun as error:
        print(f"rolloutfleet-operator: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    main()
