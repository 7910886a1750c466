import gc
import sys

from rolloutfleet.extras import NotInstalled, need


def main() -> None:
    try:
        need("engine")
    except NotInstalled as error:
        print(f"rolloutfleet-engine: {error}", file=sys.stderr)
        sys.exit(2)
    gc.disable()  # What imports make stays, so there is nothing to look for until all is loaded.
    from rolloutfleet_engine import cli

    gc.freeze()
    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
