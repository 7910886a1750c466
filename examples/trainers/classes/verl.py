"""verl's outputs, made and told by its own class."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import pydantic
import torch
from examples.trainers.classes.compared import Bits, Compared, bits, compared, native
from examples.trainers.classes.source import definitions

from rolloutfleet.formats import Rollout, verl

MODULE: Final = "verl.experimental.agent_loop.agent_loop"
HOW: Final = (
    "AgentLoopOutput, executed from the source of verl/experimental/agent_loop/agent_loop.py alone, as the module "
    "imports ray and pins an older PyTorch; what its as_dict hands to the trainer has to be the rows; of "
    "verl.output, for the classic trainer, that it takes each rollout"
)
ROOM: Final = {"prompt_length": 10_000, "response_length": 10_000}


def compare(rollouts: Sequence[Rollout]) -> Compared:
    """An output for each row that trains something; in the classic form one a rollout, whatever it is."""
    module = ModuleType(MODULE)
    made = definitions(
        "verl",
        f"{MODULE.replace('.', '/')}.py",
        ("AgentLoopMetrics", "AgentLoopOutput"),
        torch=torch,
        **{name: getattr(pydantic, name) for name in ("BaseModel", "ConfigDict")},
    )
    vars(module).update(vars(made))
    sys.modules[MODULE] = module
    for rollout in rollouts:
        bits_of(verl.output(rollout, **ROOM))
    had = [[bits_of(each) for each in verl.outputs(rollout, **ROOM)] for rollout in rollouts]
    return compared(rollouts, [native(rollout) for rollout in rollouts], had)


def bits_of(output: Any) -> Bits:
    """The row, of what the class tells the trainer."""
    told = output.as_dict()
    prompt, mask = told["prompts"], told["response_mask"]
    before = torch.zeros(len(prompt))
    versions = told["extra_fields"].get("response_versions", [-1] * len(mask))
    rewards = told.get("rm_scores")
    columns = [
        torch.cat([prompt, told["responses"]]),
        torch.cat([before, mask]),
        torch.cat([before, told["rollout_log_probs"]]),
        torch.cat([before - 1, torch.tensor(versions)]),
    ]
    return bits(columns, None if rewards is None else rewards[-1])
