"""New weights into the fleet's engines, under a version."""

from pathlib import Path

import httpx

from rolloutfleet import AsyncFleet


async def load_weights(fleet: AsyncFleet, checkpoint: Path, version: int, *, flush_cache: bool = True) -> None:
    """Every engine loads a checkpoint. Within `fleet.weight_update`. Raises httpx.HTTPError, RuntimeError."""
    wanted = {"model_path": str(checkpoint), "weight_version": str(version), "flush_cache": flush_cache}
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        for engine in fleet.engines:
            url = f"{engine.url}/update_weights_from_disk"
            answer = (await client.post(url, headers=engine.headers, json=wanted)).raise_for_status().json()
            if not answer["success"]:
                raise RuntimeError(f"{engine.url} did not load {checkpoint}: {answer['message']}")
