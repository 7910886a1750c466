"""Digests are those of the parts joined, however they are cut."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.digests import digest16

sizes = st.sampled_from([0, 1, 63, 1983, 1984, 1985, 2047, 2048, 3968, 10_000, (1 << 18) - 1, 1 << 18, 300_000])


@given(st.lists(st.tuples(sizes, st.binary(min_size=1, max_size=7)), max_size=4))
def test_pieces_make_no_difference(parts: list[tuple[int, bytes]]) -> None:
    given_parts = [(filling * (size // len(filling) + 1))[:size] for size, filling in parts]
    assert digest16(*given_parts) == sha256(b"".join(given_parts)).digest()[:16]
