"""The real SGLang, once for each process of the run that asks for it, on this machine's CPU."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.engine.engines import Engine
from tests.engine.request_log import RequestLog
from tests.engine.sglang import launch
from tests.engine.sglang.places import Installed, find
from tests.fleets import ProxyProcess, running_gateway
from tests.processes import NotServing, Server, free_port, serving
from tests.waiting import PATIENCE, SGLANG_START, START

HERE = Path(__file__).parent
UNTIL_THE_LAST = pytest.StashKey[ExitStack]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # The first test of a run waits for the engine to start as well.
            item.add_marker(pytest.mark.timeout(SGLANG_START + PATIENCE))


@pytest.fixture(scope="session")
def sglang() -> Installed:
    installed = find()
    if installed is None:
        # Never a skip: a judge who stays away would let everything pass.
        pytest.fail("The real SGLang is not installed: make sglang")
    return installed


@pytest.fixture(scope="session")
def until_the_last(pytestconfig: pytest.Config) -> Iterator[ExitStack]:
    """What is closed after the last of these tests, not at the end of the run: SGLang takes more than a gigabyte."""
    with pytestconfig.stash.setdefault(UNTIL_THE_LAST, ExitStack()) as stack:
        yield stack


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or HERE not in nextitem.path.parents:
        item.config.stash.setdefault(UNTIL_THE_LAST, ExitStack()).close()


@pytest.fixture(scope="session")
def real_server(sglang: Installed, until_the_last: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Server:
    port, folder = free_port(), tmp_path_factory.mktemp("sglang")
    engine = serving(
        launch.command(sglang, model=sglang.model("first"), port=port, request_log=folder / "requests"),
        port=port,
        log=folder / "log",
        environment=launch.environment(sglang),
        deadline=SGLANG_START,
    )
    try:
        return until_the_last.enter_context(engine)
    except NotServing as reason:
        pytest.fail(f"The real SGLang does not serve. {reason}")


@pytest.fixture(scope="session")
def request_log(real_server: Server) -> RequestLog:
    return RequestLog(real_server.log.parent / "requests")


@pytest.fixture(scope="session")
def real_gateway(real_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), [real_server.url]) as server:
        yield server


@pytest.fixture(scope="session")
def real_proxy(
    real_gateway: Server, sglang: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """A proxy on the real gateway and the real engine."""
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    (folder / "admin.key").write_text("an-admin-key-for-tests-alone\n")
    model = str(sglang.model("first"))
    settings = {
        "fleet": "real",
        "model": "tiny",
        "tokenizer": {"path": model},
        "port": port,
        "state_dir": str(folder / "proxy" / "state"),
        "gateway_url": real_gateway.url,
        "admin_key_file": str(folder / "admin.key"),
        "sessions": {"retryGrace": "0s"},
    }
    proxy = ProxyProcess(0, port, folder / "proxy", settings)
    try:
        proxy.start()
        with proxy.admin() as admin:
            admin.put("/version", json={"version": 1}).raise_for_status()
        yield proxy
    finally:
        proxy.stop()


@pytest.fixture(scope="session")
def simulated_server(sglang: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The simulated engine, set to be as the real one is: same model directory, context and first version."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "rolloutfleet_engine", "--port", str(port)),
        *("--model-path", str(sglang.model("first")), "--weight-version", "1"),
        *("--max-context", str(launch.CONTEXT_LENGTH), "--token-latency", "0.002"),
    ]
    log = tmp_path_factory.mktemp("simulated") / "log"
    with serving(command, port=port, log=log, deadline=START) as server:
        yield server


@pytest.fixture
async def simulated_engine(simulated_server: Server, sglang: Installed) -> AsyncIterator[Engine]:
    async with Engine(simulated_server.url) as engine:
        await set_right(engine, sglang)
        yield engine


@pytest.fixture
async def real_engine(real_server: Server, sglang: Installed) -> AsyncIterator[Engine]:
    """The real engine, running and with its first weights, whatever the test before it left."""
    async with Engine(real_server.url) as engine:
        await set_right(engine, sglang)
        yield engine


async def set_right(engine: Engine, sglang: Installed) -> None:
    """Nothing in flight, not paused, the first weights as version 1."""
    await engine.go_on()
    await engine.post("/abort_request", {"abort_all": True})
    first = {"model_path": str(sglang.model("first")), "weight_version": "1"}
    info = (await engine.get("/model_info")).body
    if any(info[name] != value for name, value in first.items()):
        assert (await engine.post("/update_weights_from_disk", first)).status == 200
