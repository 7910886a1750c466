"""What is missing, or can't be downloaded, is known before the tests that need it."""

import pytest
from tests import tools
from tests.paths import ROOT
from toolchain.environments import NotInstalled


class Registry:
    """Refuses so many times, saying why."""

    def __init__(self, refusals: int, why: str = "503") -> None:
        self.refusals, self.why, self.asked = refusals, why, 0

    def fetch(self) -> None:
        self.asked += 1
        if self.asked <= self.refusals:
            raise NotInstalled(self.why)


def refused(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> dict[str, str]:
    monkeypatch.setitem(tools.DOWNLOADS, "agents", [tools.Download(registry.fetch, ("tests/a", "tests/b"))])
    return tools.refused("agents")


def test_what_a_registry_refuses_three_times_names_the_tests_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(3)
    assert refused(monkeypatch, registry) == {"tests/a": "503", "tests/b": "503"}
    assert registry.asked == 3


def test_what_comes_at_the_third_try_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, Registry(2)) == {}


def test_another_content_than_the_locks_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotInstalled, match="Hash mismatch"):
        refused(monkeypatch, Registry(1, "Hash mismatch for a package"))


def test_a_missing_tool_is_named_with_what_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there, absent = tools.Tool("a", lambda: True, "make a"), tools.Tool("b", lambda: False, "make b")
    monkeypatch.setitem(tools.TOOLS, "browser", [there, absent])
    assert tools.missing("browser") == ["b is missing: make b"]


def test_downloads_are_needed_by_tests_that_are_there() -> None:
    for folder, downloads in tools.DOWNLOADS.items():
        for test in (test for each in downloads for test in each.needed_by):
            file, _, name = test.partition("::")
            assert file.startswith(f"tests/{folder}/")
            assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()
