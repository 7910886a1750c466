"""Of all who say how a turn is sampled, one counts for each parameter, and it is always clear who."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.domain.sampling import UNSAID, Sampling, SessionSampling

PLAIN = ("temperature", "top_p", "top_k", "max_tokens")
ARGUMENTS = ("enable_thinking", "reasoning_effort", "style")

values = st.none() | st.integers(1, 9)
samplings = st.builds(
    Sampling,
    **dict.fromkeys(PLAIN, values),
    chat_template_kwargs=st.none() | st.dictionaries(st.sampled_from(ARGUMENTS), st.integers(1, 9), min_size=1),
)
owned = st.builds(SessionSampling, defaults=samplings, overrides=samplings)


def said(sampling: Sampling) -> dict[str, Any]:
    """Every parameter that something is said of, template arguments each for itself."""
    plain = {name: value for name in PLAIN if (value := getattr(sampling, name)) is not None}
    return plain | dict(sampling.chat_template_kwargs or {})


@given(own=owned, fleet=owned)
def test_what_a_session_says_of_a_parameter_comes_before_all_that_its_fleet_says_of_it(
    own: SessionSampling, fleet: SessionSampling
) -> None:
    both = own.over(fleet)
    known = said(own.defaults).keys() | said(own.overrides).keys()
    for mine, theirs, made in (
        (own.defaults, fleet.defaults, both.defaults),
        (own.overrides, fleet.overrides, both.overrides),
    ):
        rest = {name: value for name, value in said(theirs).items() if name not in known}
        assert said(made) == said(mine) | rest


@given(own=owned)
def test_a_fleet_or_a_session_without_a_word_changes_nothing(own: SessionSampling) -> None:
    assert own.over(UNSAID) == UNSAID.over(own) == own


@given(own=owned)
def test_a_row_gives_back_what_it_was_given(own: SessionSampling) -> None:
    text = own.encode()
    assert (text is None) == (own == UNSAID)
    assert text is None or SessionSampling.decode(text) == own
