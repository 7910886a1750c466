"""The chat formats that all tests here share: `tests.scheduling` has one process run them."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `chat_format` writes the models of families that nobody has asked for yet."""
    return tmp_path_factory.mktemp("models")
