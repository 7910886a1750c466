"""Exports as Parquet files, read by what trainers read them with."""

import json
import os
from pathlib import Path

from tests.commands import ran
from tests.engine.sglang.places import Installed
from tests.fleets import running_fleet
from tests.integration.client.exports import asked, made, read
from tests.integration.client.fleet.conftest import whereabouts

from rolloutfleet.fleet import Fleet

READERS = """\
import json, sys
import pandas
from datasets import load_dataset

frame = pandas.read_parquet(sys.argv[1])
print(json.dumps({row.session_id: [row.input_ids.tolist(), row.logprobs.astype(float).tolist(), row.reward]
                  for row in frame.itertuples()}))
found = load_dataset("parquet", data_dir=sys.argv[1], split="train")
print(json.dumps({row["session_id"]: [row["input_ids"], row["logprobs"], row["reward"]] for row in found}))
"""


def test_the_parquet_opens_in_datasets_and_pandas(sglang: Installed, tmp_path: Path) -> None:
    """Which come with SGLang."""
    with running_fleet(tmp_path / "fleet") as running, Fleet(whereabouts(running)) as fleet:
        sessions = made(fleet, 6)
        done = asked(running, "--to", "parquet", "-o", str(tmp_path / "out"), "--part-size", "4Ki")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) > 1
    kept = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    kept.pop("PYTHONPATH", None)
    seen = ran(str(sglang.python), "-c", READERS, str(tmp_path / "out"), env=kept, timeout=150)
    assert seen.returncode == 0, seen.stderr
    by_pandas, by_datasets = map(json.loads, seen.stdout.splitlines()[-2:])
    assert by_pandas == by_datasets
    ours = {
        record["session_id"]: [record["input_ids"], record["logprobs"], record["reward"]]
        for record in read(tmp_path / "out")
    }
    assert by_pandas == ours and set(ours) == set(sessions)
