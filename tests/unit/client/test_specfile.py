from pathlib import Path

import pytest
from tests.paths import ROOT

from rolloutfleet.specfile import FleetFileError, load_fleet

GOOD = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {name: math}
spec: {model: m, engine: {replicas: 2}}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return path


def test_a_fleet_is_read_from_among_other_documents(tmp_path: Path) -> None:
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\n---\n"
    read = load_fleet(written(tmp_path, f"---\n{other}{GOOD}---\n"))
    assert read.spec.engine is not None
    assert read.spec.engine.replicas == 2


def test_a_date_as_an_id_stays_text(tmp_path: Path) -> None:
    text = GOOD.replace("model: m,", "model: m, restart: {id: 2026-11-21},")
    restart = load_fleet(written(tmp_path, text)).spec.restart
    assert restart is not None
    assert restart.id == "2026-11-21"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "needs one document of kind RolloutFleet; it has none"),
        (f"{GOOD}---\n{GOOD}", "needs one document of kind RolloutFleet; it has 2"),
        ("- a\n", "the whole: must be a mapping, not ['a']"),
        ("kind: [", "line 1: expected the node content, but found '<stream end>'"),
        ("\x00", "is not YAML"),
        (GOOD + "kind: RolloutFleet\n", "line 5: kind is given twice in one mapping"),
        (GOOD.replace("v1alpha1", "v2"), "apiVersion: must be rolloutfleet.dev/v1alpha1, not 'rolloutfleet.dev/v2'"),
        ("a: &a [*a]\n", "line 1: found unconstructable recursive node"),
    ],
)
def test_a_mistake_is_one_line_with_the_files_name(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FleetFileError) as caught:
        load_fleet(path)
    assert any(problem in line for line in caught.value.problems)
    assert all(line.startswith(f"{path}: ") for line in str(caught.value).splitlines())


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="can't be read: No such file"):
        load_fleet(tmp_path / "none.yaml")


def test_every_mistake_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError) as caught:
        load_fleet(written(tmp_path, GOOD.replace("model: m,", "modle: m, suspend: 3, image: 4,")))
    assert len(caught.value.problems) == 4


EXAMPLES = ROOT / "examples"
OPERATOR = EXAMPLES / "kubernetes" / "operator.yaml"


@pytest.mark.parametrize("example", sorted({*EXAMPLES.rglob("*.yaml")} - {OPERATOR}), ids=lambda path: path.stem)
def test_every_example_is_a_fleet(example: Path) -> None:
    assert load_fleet(example).spec.model
