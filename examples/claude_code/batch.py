"""What the rollouts gave, as a batch of tensors. `python -m examples.claude_code` starts it, where PyTorch is."""

import argparse
import sys
from pathlib import Path

import torch

from rolloutfleet import Fleet, Trajectory
from rolloutfleet.torch import to_batch


def main() -> int:
    asked = _arguments()
    with Fleet.from_file(asked.fleet, progress=False) as fleet, fleet.export(asked.count, timeout=60) as export:
        trajectories = list(export)
        batch = to_batch(trajectories, pad_to_multiple_of=64)
    _show(trajectories, batch)
    torch.save(dict(batch), asked.output)
    print(f"\nwritten to {asked.output}")
    return 0


def _show(trajectories: list[Trajectory], batch: dict[str, torch.Tensor]) -> None:
    print(f"\n{'task':<14}{'row':>4}{'reward':>8}{'tokens':>9}{'trained':>9}{'turns':>7}")
    for row, place in enumerate(batch["trajectory_index"].tolist()):
        mask = batch["loss_mask"][row]
        turns = len(batch["turn_ids"][row][mask].unique())
        tokens = int(batch["attention_mask"][row].sum())
        reward = f"{float(batch['rewards'][row]):.2f}" if batch["rewarded"][row] else "-"
        task = trajectories[place].task_id or ""
        print(f"{task:<14}{row:>4}{reward:>8}{tokens:>9}{int(mask.sum()):>9}{turns:>7}")
    print()
    for name, tensor in batch.items():
        print(f"{name:<18}{str(tensor.dtype).removeprefix('torch.'):<9}{tuple(tensor.shape)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", required=True, help="fleet.json of the fleet, or its folder")
    parser.add_argument("--count", type=int, required=True, help="trajectories to take")
    parser.add_argument("--output", type=Path, required=True, help="where torch.save puts the batch")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
