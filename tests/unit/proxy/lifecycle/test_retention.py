"""Which dumps go, whatever the folder holds."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.lifecycle.retention import Kept, removable

FILES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 20)).map(lambda drawn: (drawn[0] * 10.0, drawn[1])), max_size=12
).map(lambda drawn: [Kept(f"file-{place}", nbytes, since) for place, (since, nbytes) in enumerate(drawn)])
AGE = st.none() | st.sampled_from([5.0, 20.0, 100.0])
MOST = st.none() | st.integers(0, 100)


@given(FILES, st.sampled_from([50.0, 60.0, 100.0]), AGE, MOST)
def test_what_is_kept_is_within_bounds_or_new(
    files: list[Kept], now: float, age: float | None, most: int | None
) -> None:
    this_sweep = 50.0
    going = removable(files, now=now, age=age, most_bytes=most, this_sweep=this_sweep)
    left = [file for file in files if file.file not in going]
    newest = min(this_sweep, max((file.since for file in files), default=0.0))
    if age is not None:
        assert all(now - file.since < age for file in left if file.since < this_sweep)
    if most is not None and sum(file.bytes for file in left) > most:
        assert all(file.since >= newest for file in left), "only what the newest sweep wrote may be too much"
    assert all(file.since < this_sweep for file in files if file.file in going), "what this sweep wrote stays"
    if age is None and most is not None and going:
        last = max((file for file in files if file.file in going), key=lambda file: (file.since, file.file))
        assert sum(file.bytes for file in left) + last.bytes > most, "no more goes than must"
        assert all((file.since, file.file) > (last.since, last.file) for file in left), "the oldest go first"
    if age is None and most is None:
        assert going == []
