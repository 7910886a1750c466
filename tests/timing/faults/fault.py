"""What a planted fault is, and how it gets into a copy of the sources."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

SUFFIXES = (".py", ".js", ".html")
"""Of sources."""

PROXY = "proxy/rolloutfleet_proxy"
OPERATOR = "operator/rolloutfleet_operator"
CLIENT = "client/rolloutfleet"


class Promise(StrEnum):
    """What a fault breaks: a part of what the design promises."""

    CAPTURE = "what the engine sampled is what is kept, to the token"
    COMMIT = "an answer is committed before it leaves"
    RETRY = "a retry finds its turn"
    READING = "what the model wrote is what the agent is told"
    WRITING = "what the agent sent is what the model reads"
    SAMPLING = "a turn is sampled as its trainer says"
    TREE = "a call extends the branch that it continues"
    LINEAGE = "each agent goes on from its own turns, and rewards reach whom they are meant for"
    LEASE = "what is leased is nobody else's until the lease ends"
    ACK = "what is acknowledged is gone, once"
    CLEANUP = "what nobody uses is dumped and freed, and nothing else"
    WEIGHTS = "versions and pauses hold for every token"
    SHARDS = "tensors are handed over whole"
    AUTH = "a key opens its own routes alone"
    RECOVERY = "a start finds what the last life left"
    ENGINE = "the engine's reply is read as it is meant"
    OPERATOR = "proxies are restarted one by one, for a reason, and before memory runs out"
    LOOKING = "who looks on sees what is there, and nobody else does"
    WAITING = "who waits is kept alive, and has the answer as it came"
    LISTS = "what a session's row says is what its turns say, and lists choose by it"
    KEEPING = "what was trained and is drawn is copied whole before it is freed"
    TRACES = "a span is in its caller's trace, and has nothing of a conversation in it"
    CLIENT = "the client asks again where that is safe, and only there"


@dataclass(frozen=True, slots=True)
class Fault:
    """`text` stands once in the sources below `folder`, in whatever file; `planted` takes its place."""

    name: str
    promise: Promise
    folder: str
    text: str
    planted: str
    tests: tuple[str, ...]
    """That need neither SGLang nor Kubernetes: files, by the end of their path, or single tests as `file::test`. There
    may be one that is called so in several parts of the tests."""

    def file(self, root: Path) -> Path:
        """Where it is planted. Raises LookupError where its text is not there, or more than once."""
        sources = (path for path in sorted((root / self.folder).rglob("*")) if path.suffix in SUFFIXES)
        found = {path: path.read_text().count(self.text) for path in sources}
        places = [path for path, count in found.items() if count]
        if sum(found.values()) != 1:
            raise LookupError(f"{self.name}: its text stands {sum(found.values())} times below {self.folder}")
        return places[0]

    def selection(self, root: Path) -> list[str]:
        """Its tests, for pytest. Raises LookupError where one is not there, or several in a part of the tests."""
        return [found for test in self.tests for found in _selected(root, test)]

    def plant(self, root: Path) -> Path:
        """Changes the file, and returns it."""
        path = self.file(root)
        path.write_text(path.read_text().replace(self.text, self.planted))
        return path


def _selected(root: Path, test: str) -> list[str]:
    file, _, name = test.partition("::")
    defined = f"def {name.partition('[')[0]}("
    paths = [path.relative_to(root) for path in sorted((root / "tests").rglob(Path(file).name))]
    found = [path for path in paths if f"/{path}".endswith(f"/{file}")]
    found = [path for path in found if not name or defined in (root / path).read_text()]
    if not found or len({part_of(path) for path in found}) < len(found):
        raise LookupError(f"{len(found)} files of tests are called {file}{f' and have {name}' * bool(name)}")
    return [f"{path}::{name}" if name else str(path) for path in found]


def part_of(test: Path | str) -> str:
    """The folder of tests/ that a test is in."""
    return Path(test).parts[1]
