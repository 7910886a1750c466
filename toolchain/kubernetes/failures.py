"""What can go wrong, said to a person: what happened and what to do about it."""


class ClusterError(Exception):
    """The cluster could not be made, found or changed. The text says why, and what helps."""


class CommandFailed(ClusterError):
    """A program that was run ended badly."""

    def __init__(self, words: list[str], status: int, said: str) -> None:
        shown = " ".join(words)
        tail = "\n".join(f"    {line}" for line in said.strip().splitlines()[-15:])
        super().__init__(f"`{shown[:300]}` ended with status {status}:\n{tail}")
        self.status = status
        self.said = said
