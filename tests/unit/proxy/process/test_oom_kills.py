"""Where the count of OOM kills stands, and how it is read."""

import pytest

from rolloutfleet_proxy.process.oom_kills import count, files, parse

V2 = ["0::/kubepods/pod1/c1\n"]
V1 = ["9:name=systemd:/\n", "4:hugetlb,memory:/docker/c1\n", "0::/\n"]


def test_the_count_is_looked_for_where_either_version_has_it() -> None:
    assert list(files(V2, "/cg")) == ["/cg/kubepods/pod1/c1/memory.events", "/cg/memory.events"]
    assert list(files(V1, "/cg")) == [
        *("/cg/memory/docker/c1/memory.oom_control", "/cg/memory/memory.oom_control"),
        *("/cg/memory.events", "/cg/memory.events"),
    ]
    assert list(files(["", "x"], "/cg")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("low 0\nhigh 0\nmax 3\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("oom_kill many", None),
        ("", None),
    ],
)
def test_the_count_of_a_file_is_that_of_its_line(text: str, found: int | None) -> None:
    assert parse(text) == found


def test_the_count_here_is_a_number() -> None:
    assert count() >= 0
