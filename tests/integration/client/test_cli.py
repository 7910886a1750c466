"""The command line as a process of its own."""

from importlib.metadata import version

from tests.commands import CLI, ran


def test_a_process_ends_with_a_mistakes_line_and_status() -> None:
    done = ran(*CLI, "statu")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("rolloutfleet: No such command 'statu'")


def test_the_release_is_said() -> None:
    done = ran(*CLI, "--version")
    assert (done.returncode, done.stdout) == (0, f"rolloutfleet {version('rolloutfleet')}\n")
