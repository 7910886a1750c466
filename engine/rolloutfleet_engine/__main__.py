import gc


def main() -> None:
    gc.disable()  # What imports make stays, so there is nothing to look for until all is loaded.
    from rolloutfleet_engine import cli

    gc.freeze()
    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
