"""The command `rolloutfleet`, or `python -m rolloutfleet`."""

import signal


def main() -> None:
    # Loading the commands takes a second, in which there is nothing to clean up: Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rolloutfleet import cli

    cli.main()


if __name__ == "__main__":
    main()
