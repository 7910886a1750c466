"""Classes in the place of those of trainers' packages, which tests do without."""

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@dataclass
class AgentLoopOutput:
    """Fields of verl's, 0.9.1."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    metrics: dict[str, Any]
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Datum:
    """Tinker's, without provenance."""

    model_input: Any
    loss_fn_inputs: dict[str, Any]


def install(patch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A module that is imported by this name."""
    module = ModuleType(name)
    vars(module).update(members)
    patch.setitem(__import__("sys").modules, name, module)


def install_tinker(patch: pytest.MonkeyPatch) -> None:
    class ModelInput(SimpleNamespace):
        @classmethod
        def from_ints(cls, tokens: list[int]) -> "ModelInput":
            return cls(tokens=tokens)

    class TensorData(SimpleNamespace):
        @classmethod
        def from_numpy(cls, array: Any) -> "TensorData":
            return cls(array=array)

    install(patch, "tinker", Datum=Datum, ModelInput=ModelInput, TensorData=TensorData)


def install_verl(patch: pytest.MonkeyPatch) -> None:
    for name in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
        install(patch, name)
    install(patch, "verl.experimental.agent_loop.agent_loop", AgentLoopOutput=AgentLoopOutput)
