"""What importing costs."""

import subprocess
import sys


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after it."""
    report = "import sys; print(' '.join({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing() -> None:
    heavy = {"httpx", "pydantic", "numpy", "rich", "torch", "typer", "yaml"}
    assert loaded_by("import rolloutfleet") & heavy == set()


def test_a_fleet_needs_neither_torch_nor_the_server() -> None:
    loaded = loaded_by(
        "from rolloutfleet import Fleet, AsyncFleet, StalenessManager, Trajectory, Whereabouts, FleetError"
    )
    assert "httpx" in loaded
    assert loaded & {"torch", "kubernetes", "typer", "rolloutfleet_proxy", "rolloutfleet_operator"} == set()
