"""PyTorch is no dependency."""

import importlib.util

import pytest


def test_without_torch_everything_else_works_and_this_says_what_to_install() -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed here")
    import rolloutfleet
    from rolloutfleet.remote_tensors import RemoteTensors

    assert rolloutfleet.__doc__
    with pytest.raises(ImportError, match="pip install torch"):
        import rolloutfleet.torch
    with pytest.raises(ImportError, match="pip install torch"):
        RemoteTensors([], "key")
    RemoteTensors([], "key", framework="numpy").close()
