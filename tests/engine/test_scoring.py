"""Scores of rows by the real engine: what `transformers` says of their tokens, and what they were sampled with."""

import json
import subprocess

import numpy as np
import pytest
from tests.engine.engines import Engine
from tests.engine.sglang import launch
from tests.engine.sglang.places import Installed
from tests.engine.test_capture import TOOLS, ask
from tests.engine.test_versions import SAME_WEIGHTS
from tests.fleets import ProxyProcess
from tests.processes import Server
from tests.waiting import SGLANG_START

from rolloutfleet import Fleet, Whereabouts, score
from rolloutfleet.fleet import BadArgument

SAME_TEXT = 1e-4
JUDGE = """
import json, sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
ids = torch.tensor([json.load(sys.stdin)])
with torch.no_grad():
    logprobs = model(ids).logits[0, :-1].log_softmax(-1)
print(json.dumps([0.0, *logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()]))
"""


@pytest.mark.timeout(3 * SGLANG_START)
def test_rows_are_scored_as_transformers_would_and_as_they_were_sampled(
    real_proxy: ProxyProcess, real_engine: Engine, real_server: Server, sglang: Installed
) -> None:
    session = real_proxy.start_session()
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    for number in range(3):
        messages.append(ask(session, messages, stream=False, tools=TOOLS, temperature=1.0))
        messages.append({"role": "user", "content": f"And in city {number}?"})
    ask(session, messages[:1], stream=False, temperature=0.5)
    with Fleet(Whereabouts.from_url(real_proxy.url, admin_key=real_proxy.key), progress=False) as fleet:
        fleet.close_session(session.session_id)
        with fleet.export(session_ids=[session.session_id]) as export:
            [trajectory] = export
    row, other = trajectory.rows
    [scores] = score([row], real_server.url)
    ids, mask, sampled = (np.asarray(row.tensors[name]) for name in ("input_ids", "loss_mask", "logprobs"))
    assert np.count_nonzero(mask) > 60 and scores.dtype == np.float32
    assert np.abs(scores - np.where(mask, by_transformers(sglang, ids.tolist()), 0)).max() < SAME_TEXT
    assert np.abs(scores - sampled).max() < SAME_WEIGHTS
    with pytest.raises(BadArgument, match=trajectory.turns[3].turn_id):
        score([row, other], real_server.url)


def by_transformers(sglang: Installed, ids: list[int]) -> list[float]:
    """The log-probability of each token, 0 for the first."""
    done = subprocess.run(
        [sglang.python, "-W", "ignore", "-c", JUDGE, sglang.model("first")],
        env=launch.environment(sglang),
        input=json.dumps(ids),
        capture_output=True,
        text=True,
        timeout=SGLANG_START,
    )
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found
