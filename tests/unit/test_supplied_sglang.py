"""The real engine's tests on an SGLang that the user supplies, instead of the one that `make sglang` installs."""

from pathlib import Path

import pytest
from tests.engine.sglang import launch
from tests.engine.sglang.places import ENVIRONMENT_VARIABLE, OPTIONS_VARIABLE, Installed, find


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("bin", "models/first", "models/second"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin/python").touch()
    return tmp_path


@pytest.fixture
def supplied(folder: Path) -> Installed:
    installed = find(
        {ENVIRONMENT_VARIABLE: str(folder), OPTIONS_VARIABLE: "--dtype bfloat16 --served-model-name 'a model'"}
    )
    assert installed is not None
    return installed


def test_it_and_its_models_are_where_the_variable_says(supplied: Installed, folder: Path) -> None:
    assert supplied.python == folder / "bin" / "python"
    assert supplied.model("first") == folder / "models" / "first"


def test_what_is_missing_of_it_is_named(folder: Path) -> None:
    (folder / "models/second").rmdir()
    with pytest.raises(SystemExit, match=r"ROLLOUTFLEET_SGLANG is .*, and there is no .*models/second"):
        find({ENVIRONMENT_VARIABLE: str(folder)})


def test_its_options_take_the_place_of_those_for_the_cpu(supplied: Installed, tmp_path: Path) -> None:
    words = launch.command(supplied, model=tmp_path, port=1, request_log=tmp_path)
    assert words[words.index("--dtype") :][:4] == ["--dtype", "bfloat16", "--served-model-name", "a model"]
    assert not {"cpu", "--disable-overlap-schedule"} & set(words)
    assert {"--log-requests", "--skip-server-warmup"} <= set(words)


def test_nothing_of_its_environment_is_made_for_a_cpu(supplied: Installed) -> None:
    inherited = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "PYTHONPATH": "/elsewhere"}
    made = launch.environment(supplied, inherited)
    assert made == {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_the_installed_one_runs_on_the_cpu_as_ever(tmp_path: Path) -> None:
    installed = Installed(environment=tmp_path, models=tmp_path)
    words = launch.command(installed, model=tmp_path, port=1, request_log=tmp_path)
    assert words[words.index("--device") :][:4] == ["--device", "cpu", "--dtype", "float32"]
    assert launch.environment(installed, {})["SGLANG_USE_CPU_ENGINE"] == "1"
