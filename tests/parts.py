"""The parts of the tests: a folder below tests/ each, with a make target, and how its pytest is called."""

import os
from dataclasses import dataclass
from typing import Final

CORES: Final = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Part:
    """A folder of tests that is run, and fails, by itself."""

    name: str
    workers: int = 0
    """Processes of pytest; 0: this one alone."""
    beside: tuple[str, ...] = ()
    """A module with arguments that belongs to the part and runs beside its pytest."""
    shows_tests: bool = True
    """True: pytest's output is shown as it comes, the module's at its end. False: the other way round."""

    @property
    def folder(self) -> str:
        return f"tests/{self.name}"

    @property
    def target(self) -> str:
        """The make target."""
        return "test" if self.name == "unit" else f"test-{self.name}"

    def options(self) -> list[str]:
        """Of pytest."""
        return ["-n", str(self.workers), "--dist", "loadfile"] if self.workers else []


PARTS: Final = {
    part.name: part
    for part in (
        Part("unit", workers=CORES, beside=("toolchain.type_check",)),
        # Its tests wait for processes that they have started.
        Part("integration", workers=6 + CORES),
        Part("engine", workers=2),
        Part("cluster", beside=("e2e",), shows_tests=False),
        Part("agents", workers=2),
        Part("browser", workers=2),
        Part("system", workers=2),
        # Nothing else may take the processor meanwhile.
        Part("timing"),
    )
}


def part_of(path: str) -> Part | None:
    """The part that a file, folder or test id below tests/ belongs to."""
    words = path.removeprefix("./").split("/")
    return PARTS.get(words[1]) if len(words) > 1 and words[0] == "tests" else None
