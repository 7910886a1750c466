"""Scores of rows by the real engine: the log-probabilities that their tokens were sampled with."""

import numpy as np
import pytest
from tests.engine.engines import Engine
from tests.engine.test_capture import TOOLS, ask
from tests.fleets import ProxyProcess
from tests.processes import Server

from rolloutfleet import Fleet, Whereabouts, score
from rolloutfleet.fleet import BadArgument

SAME_WEIGHTS = 1e-4


def test_rows_are_scored_as_they_were_sampled(
    real_proxy: ProxyProcess, real_engine: Engine, real_server: Server
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
    sampled = np.asarray(row.tensors["logprobs"])
    assert np.count_nonzero(np.asarray(row.tensors["loss_mask"])) > 60 and scores.dtype == np.float32
    assert np.abs(scores - sampled).max() < SAME_WEIGHTS
    with pytest.raises(BadArgument, match=trajectory.turns[3].turn_id):
        score([row, other], real_server.url)
