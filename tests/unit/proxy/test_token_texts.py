"""Each token's text, with no character torn apart."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.services.token_texts import token_texts


@given(st.text(), st.data())
def test_the_texts_of_any_tokens_are_the_text_however_it_is_cut(text: str, data: st.DataObject) -> None:
    encoded = text.encode("utf-8", "replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=20)))
    tokens = [encoded[start:end] for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    found = token_texts(range(len(tokens)), tokens.__getitem__, ends=True)
    assert len(found) == len(tokens)
    assert "".join(piece or "" for piece in found) == encoded.decode()
    assert found[0] is not None


def test_a_part_of_a_character_waits_for_the_rest_unless_nothing_follows() -> None:
    tokens = [b"a", *(bytes([byte]) for byte in "🙂".encode())]
    assert token_texts(range(3), tokens.__getitem__, ends=False) == ["a"]
    assert token_texts(range(3), tokens.__getitem__, ends=True) == ["a", "\ufffd", None]
    assert token_texts(range(5), tokens.__getitem__, ends=False) == ["a", "🙂", None, None, None]


def test_what_never_becomes_a_character_does_not_wait_for_ever() -> None:
    tokens = [b"\xf0", *[b""] * 20]
    assert len(token_texts(range(len(tokens)), tokens.__getitem__, ends=False)) == len(tokens)
