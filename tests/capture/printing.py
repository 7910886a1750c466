"""Figures that a test run shows, whether or not it passes."""

import pytest


def say(request: pytest.FixtureRequest, line: str) -> None:
    """Print a line past pytest's capture."""
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print(f"\n{line}", flush=True)
