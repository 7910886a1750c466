"""The command `rolloutfleet`, or `python -m rolloutfleet`."""

# Part of the interpreter. `signal` would load enum first, for milliseconds in which Ctrl-C shows a traceback.
from _signal import SIG_DFL, SIGINT, signal  # type: ignore[import-not-found]


def main() -> None:
    # Loading the commands takes a second, in which there is nothing to clean up: Ctrl-C ends it without a traceback.
    # The garbage collector rests meanwhile, and never looks at what was loaded: all of it stays.
    signal(SIGINT, SIG_DFL)
    import gc

    gc.disable()
    from rolloutfleet import cli

    gc.freeze()
    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
