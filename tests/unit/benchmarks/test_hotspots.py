"""Folded stacks are summed by thread, by the function that ran, and by every function under which it ran."""

from benchmarks import hotspots

FOLDED = """\
process 7:"python -m proxy";thread (0x1): MainThread;main (a.py);handle (b.py);handle (b.py) 3
process 7:"python -m proxy";thread (0x1): MainThread;main (a.py) 1
process 7:"python -m proxy";thread (0x2): store-writer;commit (c.py) 2
"""


def test_stacks_are_summed() -> None:
    stacks = hotspots.read_folded(FOLDED.splitlines())
    assert hotspots.by_leaf(stacks) == {"handle (b.py)": 3, "commit (c.py)": 2, "main (a.py)": 1}
    assert hotspots.by_frame(stacks) == {"main (a.py)": 4, "handle (b.py)": 3, "commit (c.py)": 2}
    assert hotspots.by_thread(stacks) == {"thread (0x1): MainThread": 4, "thread (0x2): store-writer": 2}
