"""The lines between TRL and a fleet (examples/trainers/trl/train.py), run without TRL."""

import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

from tests.paths import ROOT

from rolloutfleet.formats import trl


class Fleet:
    """It notes what becomes of rollouts, and what is loaded."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ended: list[str] = []
        self.loaded: list[str] = []

    @contextmanager
    def rollout(self, agent: Any, tasks: list[str], *, n: int, ordered: bool, on_exit: str) -> Any:
        assert ordered
        name = f"{'+'.join(tasks)} of {n}: {on_exit}"
        self.open.append(name)
        yield [[SimpleNamespace(trajectories=[])] * n for _ in tasks]
        self.open.remove(name)
        self.ended.append(name)

    def weights(self) -> Any:
        return SimpleNamespace(version=len(self.loaded))

    def load_from_disk(self, path: str, version: int) -> None:
        assert Path(path).is_dir() and version == len(self.loaded) + 1
        self.loaded.append(Path(path).name)


def glue(fleet: Fleet, **blocks: ExitStack) -> dict[str, Any]:
    example = (ROOT / "examples" / "trainers" / "trl" / "train.py").read_text()
    found = re.search(r"# Between TRL and the fleet: [^\n]*\n(.*) {4}# TRL, as ever", example, re.DOTALL)
    assert found is not None
    made = SimpleNamespace(accelerator=SimpleNamespace(wait_for_everyone=lambda: None))
    tokenizer = SimpleNamespace(pad_token_id=7)
    there = {
        "fleet": fleet,
        "agent": None,
        "trl": trl,
        "rmtree": rmtree,
        "made": made,
        "tokenizer": tokenizer,
        **blocks,
    }
    names: dict[str, Any] = {**there, "TrainerCallback": object}
    exec(dedent(found[1]), names)
    return names


def trainer(*, trains: bool) -> Any:
    return SimpleNamespace(model=SimpleNamespace(training=trains), num_generations=2, num_generations_eval=1)


def test_an_evaluation_is_discarded_and_acknowledges_nothing_of_a_step() -> None:
    fleet = Fleet()
    with ExitStack() as training, ExitStack() as evaluation:
        rollout_func = glue(fleet, training=training, evaluation=evaluation)["rollout_func"]
        found = rollout_func(["a", "a", "b", "b"], trainer(trains=True))
        assert found["prompt_ids"] == [[7]] * 4
        for prompts in (["c", "d"], ["e"]):
            assert len(rollout_func(prompts, trainer(trains=False))["prompt_ids"]) == len(prompts)
        assert fleet.open == ["a+b of 2: acknowledge", "e of 1: discard"]
        rollout_func(["f", "f"], trainer(trains=True))
        assert fleet.open == ["e of 1: discard", "f of 2: acknowledge"]
    assert fleet.ended == [
        "c+d of 1: discard",
        "a+b of 2: acknowledge",
        "e of 1: discard",
        "f of 2: acknowledge",
    ]


def test_two_checkpoints_stay_on_the_disk(tmp_path: Path) -> None:
    fleet, args = Fleet(), SimpleNamespace(output_dir=str(tmp_path))
    model = SimpleNamespace(save_pretrained=lambda path: Path(path).mkdir())
    callback = glue(fleet)["Weights"]()
    for step in range(5):
        state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        (callback.on_step_end if step else callback.on_train_begin)(args, state, None, model=model, lr_scheduler=None)
    assert fleet.loaded == ["0", "1", "2", "3", "4"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["3", "4"]
