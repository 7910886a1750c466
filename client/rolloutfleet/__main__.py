"""The command `rolloutfleet`, or `python -m rolloutfleet`."""

import gc
import signal


def main() -> None:
    # Loading the commands takes a second, in which there is nothing to clean up: Ctrl-C ends it without a traceback.
    # The garbage collector rests meanwhile, and never looks at what was loaded: all of it stays.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    from rolloutfleet import cli

    gc.freeze()
    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
