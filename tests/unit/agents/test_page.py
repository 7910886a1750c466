"""docs/frameworks.md says what `make agents` found when all frameworks were run last."""

import json

from tests.agents import page
from tests.agents.frameworks import FRAMEWORKS


def test_all_of_them_have_run_and_the_page_says_so() -> None:
    result = json.loads(page.RESULT.read_text())
    assert [each["name"] for each in result["frameworks"]] == [framework.name for framework in FRAMEWORKS]
    assert page.PAGE.read_text() == page.text(result), "python -m tests.agents writes both"
