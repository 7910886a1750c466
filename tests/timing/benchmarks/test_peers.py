"""The peers carry the load that they are measured under: whole sessions, without an error."""

from benchmarks.peers import running
from benchmarks.rigs import binaries
from benchmarks.rigs.bench import bench
from benchmarks.rigs.load import Shape
from benchmarks.rigs.plan import Plan


def test_the_proxy_in_r1s_shape_takes_whole_sessions() -> None:
    binaries.build()
    with bench(Plan.quick(), reply_tokens=50) as on, running.fastapi_httpx(on) as peer:
        shape = Shape(in_flight=2, warmup=0.5, window=2.0, timeout=30.0)
        result = on.load(peer.target, shape, watched={"peer": peer.process.pid})
        generated = on.stub.counts()["generated"]
    assert result.errors == 0
    assert result.total.answers == generated > 0
    assert result.total.answers > result.total.first_turns, "no session went on"
