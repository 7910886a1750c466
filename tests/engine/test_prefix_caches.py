"""The turn behind an update that leaves the prefix cache as it is, by both settings of `weights.cache`.

The real engine is the judge: asked for the log-probabilities of a given text without a cache, under the weights that
are in place. `test_tiny_rl.py` has `transformers` say the same of `byVersion`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.engines import Engine
from tests.engine.sglang.places import Installed
from tests.engine.test_capture import ask
from tests.engine.test_versions import SAME_WEIGHTS, furthest, judged
from tests.fleets import ProxyProcess
from tests.processes import Server, free_port
from tests.waiting import PATIENCE

from rolloutfleet.fleet import Fleet


@pytest.fixture(params=["byVersion", "shared"])
def proxy(
    request: pytest.FixtureRequest, real_gateway: Server, real_server: Server, sglang: Installed, tmp_path: Path
) -> Iterator[ProxyProcess]:
    """A proxy of its own: versions only go up."""
    (tmp_path / "admin.key").write_text("an-admin-key-for-tests-alone\n")
    port = free_port()
    settings = {
        "fleet": "real",
        "model": "tiny",
        "tokenizer": {"path": str(sglang.model("first"))},
        "weights": {"cache": request.param},
        "port": port,
        "state_dir": str(tmp_path / "proxy" / "state"),
        "gateway_url": real_gateway.url,
        "engine_urls": [real_server.url],
        "admin_key_file": str(tmp_path / "admin.key"),
    }
    made = ProxyProcess(0, port, tmp_path / "proxy", settings)
    made.start()
    yield made
    made.stop()


async def test_a_turn_behind_an_update_in_place_is_of_the_new_weights_alone_or_is_marked(
    proxy: ProxyProcess, real_engine: Engine, sglang: Installed
) -> None:
    session = proxy.start_session()
    with Fleet.from_url(proxy.url, admin_key=proxy.key, progress=False) as fleet:
        fleet.set_version(1)
        messages: list[Any] = [{"role": "user", "content": "Tell me a long story about a river. " * 20}]
        messages.append(ask(session, messages, stream=False))
        with fleet.weight_update(2, mode="in_place"):
            wanted = {"model_path": str(sglang.model("second")), "weight_version": "2", "flush_cache": False}
            assert (await real_engine.post("/update_weights_from_disk", wanted)).status == 200
        messages.append({"role": "user", "content": "And then?"})
        ask(session, messages, stream=False)
        fleet.reward(session.session_id, 1.0)
        with fleet.export(session_ids=[session.session_id]) as export:
            [trajectory] = export
    [row] = (each.tensors for each in trajectory.rows)
    ids, versions, logprobs = (np.asarray(row[name]) for name in ("input_ids", "versions", "logprobs"))
    new = np.flatnonzero(versions == 2)
    prompt, output = ids[: new[0]].tolist(), ids[new].tolist()
    # Whatever else asks the engine for a token, as its health checks do, is let finish first.
    assert (await real_engine.post(f"/flush_cache?timeout={PATIENCE}", {})).status == 200
    apart = furthest(logprobs[new].tolist(), await judged(real_engine, prompt, output))
    first, second = trajectory.turns
    if proxy.settings["weights"] == {"cache": "byVersion"}:
        assert apart < SAME_WEIGHTS
        assert (first.mixed_cache, second.mixed_cache) == (False, False)
    else:
        assert apart > SAME_WEIGHTS
        assert (first.mixed_cache, second.mixed_cache) == (False, True)
