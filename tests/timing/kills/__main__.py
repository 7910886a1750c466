"""`python -m tests.timing.kills`."""

import signal
import sys


def main() -> int:
    # Loading takes seconds, in which there is nothing to clean up: Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tests.timing.kills import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
