"""New weights into a fleet's engines over a process group of torch.distributed, with no disk between. Copy it.

Tried with gloo on a CPU and one engine, SGLang 0.5.23 (tests/engine/examples/test_process_group.py). Untried: NCCL,
several engines, engines with more than one GPU, quantised weights.

The trainer's process that has the weights is rank 0, and each GPU of an engine is a further rank:

    group = WeightGroup(fleet.engines, address="10.0.0.1:29600")          # once
    with fleet.weight_update(version) as update:                          # nothing generates in here
        group.update(model.named_parameters(), update.version)

Or for a try, with SGLang's Python: `python -m examples.trainers.process_group --fleet DIR --weights DIR --version 2`.
"""

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world, rendezvous

from rolloutfleet import Fleet
from rolloutfleet.fleet import EngineAddress

Weight = tuple[str, torch.Tensor]


class WeightGroup:
    """The trainer as rank 0, and the engines. Every method raises RuntimeError where an engine refuses, with what it
    said, and httpx.HTTPError where one does not answer."""

    def __init__(
        self,
        engines: Sequence[EngineAddress],
        *,
        address: str = "127.0.0.1:29600",
        backend: str = "nccl",
        device: str = "cuda",
        gpus: int = 1,
        name: str = "rolloutfleet",
        bucket_bytes: int = 1 << 29,
        timeout: float = 300.0,
    ) -> None:
        """`address` is this process's, with a free port, as engines reach it; `gpus` is an engine's tensor parallel
        size; `timeout` bounds each step, in seconds."""
        self._engines, self._device, self._name = engines, device, name
        self._bucket_bytes, self._timeout = bucket_bytes, timeout
        self._threads = ThreadPoolExecutor(len(engines))
        host, _, port = address.rpartition(":")
        size = 1 + len(engines) * gpus
        asked = {"master_address": host, "master_port": int(port), "world_size": size, "backend": backend}
        told = [
            self._ask(engine, "/init_weights_update_group", {**asked, "group_name": name, "rank_offset": 1 + at * gpus})
            for at, engine in enumerate(engines)
        ]
        try:
            self._group = joined(address, size=size, backend=backend, name=name, timeout=timeout)
        except Exception:
            # An engine that refused says more than that nobody came.
            _raise_failed(told)
            raise
        _wait(told)

    def update(self, weights: Iterable[Weight], version: int, *, flush_cache: bool = True) -> None:
        """Send the weights, by the names of the checkpoint, in buckets. The engines have to be paused.

        The prefix cache is flushed with the last bucket; not in a pause `in_place`, where that fails.
        """
        buckets = [*in_buckets(weights, self._bucket_bytes)]
        self._everywhere("/begin_weight_update", {})
        try:
            for number, bucket in enumerate(buckets, 1):
                last = number == len(buckets)
                said = {"weight_version": str(version)} if last else {}
                self._send(bucket, {"flush_cache": flush_cache and last, **said})
        finally:
            self._everywhere("/end_weight_update", {})

    def close(self) -> None:
        self._everywhere("/destroy_weights_update_group", {"group_name": self._name})
        dist.destroy_process_group(self._group)
        self._threads.shutdown()

    def _send(self, bucket: Sequence[Weight], options: dict[str, Any]) -> None:
        body = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
            "group_name": self._name,
            **options,
        }
        told = [self._ask(engine, "/update_weights_from_distributed", body) for engine in self._engines]
        tensors = [tensor.detach().to(self._device).contiguous() for _, tensor in bucket]
        sent = [dist.broadcast(tensor, src=0, group=self._group, async_op=True) for tensor in tensors]
        until = time.monotonic() + self._timeout
        while not all(each.is_completed() for each in sent):
            _raise_failed(told)  # who refused receives nothing, and the broadcast would wait for it
            if time.monotonic() > until:
                raise RuntimeError(f"a bucket of weights was not received within {self._timeout:g} s")
            time.sleep(0.001)
        _wait(told)

    def _everywhere(self, path: str, body: dict[str, Any]) -> None:
        _wait([self._ask(engine, path, body) for engine in self._engines])

    def _ask(self, engine: EngineAddress, path: str, body: dict[str, Any]) -> "Future[None]":
        return self._threads.submit(_asked, engine, path, body, self._timeout)


def _asked(engine: EngineAddress, path: str, body: dict[str, Any], timeout: float) -> None:
    answer = httpx.post(f"{engine.url}{path}", headers=engine.headers, json=body, timeout=timeout)
    if not answer.is_success or not answer.json()["success"]:
        raise RuntimeError(f"{engine.url}{path}: {answer.status_code} {answer.text[:500]}")


def _wait(told: Sequence["Future[None]"]) -> None:
    for each in told:
        each.result()


def _raise_failed(told: Sequence["Future[None]"]) -> None:
    _wait([each for each in told if each.done()])


def in_buckets(weights: Iterable[Weight], most: int) -> Iterator[list[Weight]]:
    """So many bytes at once, but for a tensor that is larger."""
    bucket: list[Weight] = []
    size = 0
    for name, tensor in weights:
        if bucket and size + tensor.nbytes > most:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket


def joined(address: str, *, size: int, backend: str, name: str, timeout: float) -> Any:
    """Rank 0 of a process group beside the trainer's own, once all are there.

    Made as SGLang makes its side of it (`init_custom_process_group` in `srt/utils/common.py`): torch has no public call
    for that.
    """
    seconds = timedelta(seconds=timeout)
    store, _, _ = next(rendezvous(f"tcp://{address}", 0, size, timeout=seconds))
    store.set_timeout(seconds)
    group, _ = _new_process_group_helper(
        size, 0, [], Backend(backend), PrefixStore(name, store), group_name=name, timeout=seconds
    )
    _world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a checkpoint here, and send it to the engines of a local fleet.")
    parser.add_argument("--fleet", required=True, help="its fleet.json, or its folder")
    parser.add_argument("--weights", type=Path, required=True, help="a folder with model.safetensors")
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--mode", default="abort", choices=["abort", "wait", "retract", "in_place"])
    parser.add_argument("--address", default="127.0.0.1:29600", help="of this process, as the engines reach it")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bucket-bytes", type=int, default=1 << 29)
    asked = parser.parse_args()
    with Fleet.from_file(asked.fleet, progress=False) as fleet:
        group = WeightGroup(
            fleet.engines,
            address=asked.address,
            backend=asked.backend,
            device=asked.device,
            bucket_bytes=asked.bucket_bytes,
        )
        with fleet.weight_update(asked.version, mode=asked.mode) as update:
            weights = load_file(asked.weights / "model.safetensors", device=asked.device)
            group.update(weights.items(), update.version, flush_cache=asked.mode != "in_place")
        group.close()


if __name__ == "__main__":
    main()
