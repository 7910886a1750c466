"""Figures that a test run shows, whether or not it passes."""

import pytest

PROPERTY = "said"


def say(request: pytest.FixtureRequest, line: str) -> None:
    """Have a line printed when the test ends; `request` is the test's, or that of a fixture of each test. It goes with
    the test's report, which also reaches the process that prints where tests run in several.
    """
    request.node.user_properties.append((PROPERTY, line))


def said(report: pytest.TestReport) -> list[str]:
    """What a test and its own fixtures had to say, once: with the last of its reports."""
    if report.when != "teardown":
        return []
    return [str(line) for name, line in report.user_properties if name == PROPERTY]
