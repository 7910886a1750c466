"""Which release of the project is installed."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """`0` where it runs from a folder of sources that is not installed."""
    try:
        return version("rolloutfleet")
    except PackageNotFoundError:
        return "0"
