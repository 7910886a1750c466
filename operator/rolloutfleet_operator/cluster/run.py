"""The operator as a process: creates its parts, and runs them until SIGTERM."""

import asyncio
import contextlib
import secrets
import signal
import socket
import time
from typing import Final

import kopf

from rolloutfleet.installed import own_version
from rolloutfleet.spec import KIND
from rolloutfleet.tasks import end_tasks
from rolloutfleet_operator.cluster import handlers
from rolloutfleet_operator.cluster.api import Api, ApiRefused, ApiUnreachable, connect
from rolloutfleet_operator.cluster.executor import Executor
from rolloutfleet_operator.cluster.fleets import Fleets
from rolloutfleet_operator.cluster.gateway_client import GatewayClient
from rolloutfleet_operator.cluster.health import Health, serve
from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.cluster.lease import Lease
from rolloutfleet_operator.cluster.logs import DefinitionGone, logger
from rolloutfleet_operator.cluster.metrics import OperatorMetrics
from rolloutfleet_operator.cluster.other_operators import Watch
from rolloutfleet_operator.cluster.proxy_client import ProxyClient
from rolloutfleet_operator.cluster.reconciler import Shared
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.cluster.slots import Slots
from rolloutfleet_operator.cluster.volumes import CordonedNodes
from rolloutfleet_operator.cluster.warning_events import WarningEvents

CRD_EVERY: Final = 5.0
KOPF_STOPS_WITHIN: Final = 10.0
"""Seconds. kopf (1.45) cancels all its tasks 5 s after one of them failed, those too that others wait for: then it
may wait for ever."""
DEFINITION_GONE: Final = "the definition of RolloutFleets is gone, and every fleet with it; exiting, to start again"


class CantRun(Exception):
    """The operator can't work here; the message is for a person."""


async def run(settings: OperatorSettings) -> None:
    """Look after fleets until SIGTERM or SIGINT. Raises CantRun."""
    try:
        # The Lease must not wait behind what passes ask for, however slow the API server is.
        api, for_the_lease = await connect(), await connect(connections=1)
    except ApiUnreachable as error:
        raise CantRun(str(error)) from None
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        stack.push_async_callback(for_the_lease.close)
        http = HttpClient()
        stack.push_async_callback(http.close)
        health, metrics = Health(time.monotonic), OperatorMetrics()
        try:
            runner = await serve(*settings.address, health, metrics)
        except OSError as error:
            raise CantRun(f"can't listen on {settings.listen}: {error.strerror or error}") from None
        stack.push_async_callback(runner.cleanup)
        shared = Shared(
            api=api,
            executor=Executor(api, ProxyClient(http), GatewayClient(http)),
            operator=settings,
            version=own_version(),
            slots=Slots(),
            clock=time.time,
            metrics=metrics,
            others=Watch(api, settings, time.time),
            warning_events=WarningEvents(api, time.monotonic),
            cordoned_nodes=CordonedNodes(api, time.monotonic),
        )
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        await _look_after(shared, Lease(for_the_lease, settings, identity=identity, wall=time.time, boot=_boot), health)


def _boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def _look_after(shared: Shared, lease: Lease, health: Health) -> None:
    fleets, namespace = Fleets(shared, lease, health), shared.operator.namespace
    where = f"namespace {namespace}" if namespace else "all namespaces"
    logger.info("rolloutfleet-operator %s manages fleets in %s", shared.version, where)
    shared.metrics.leading.set_function(lease.leading.is_set)
    shared.metrics.held.set_function(lambda: shared.slots.held if lease.leading.is_set() else 0)
    stopping = asyncio.Event()
    # kopf puts its own handler in its place, but begins later. Uncaught, SIGTERM would leave the Lease held.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    tasks = [
        asyncio.create_task(lease.hold(), name="lease"),
        asyncio.create_task(shared.others.follow(fleets.wake_all), name="others"),
    ]
    try:
        await _until_known(shared.api, namespace, stopping)
        why = None if await _watch(fleets, namespace, stopping) else await _unreadable(shared.api, namespace)
        if isinstance(why, ApiRefused) and why.status == 404:
            raise CantRun(DEFINITION_GONE)
    except DefinitionGone:
        # kopf does not come back from that. Begun again, the operator waits for a definition as at any start.
        raise CantRun(DEFINITION_GONE) from None
    finally:
        await fleets.close()
        await end_tasks(tasks)


async def _watch(fleets: Fleets, namespace: str | None, stopping: asyncio.Event) -> bool:
    """Run kopf until it ends; whether it came to its end. What is left of it ends with the event loop.

    It ends when `stopping` is set, and sets that when it ends for another reason.
    """
    if stopping.is_set():
        return True
    # Before kopf's: it takes tasks that are made later for its own.
    noticed = asyncio.create_task(stopping.wait(), name="kopf stops")
    watching = asyncio.create_task(
        kopf.operator(
            registry=handlers.registry(fleets, stopping),
            settings=handlers.settings(),
            stop_flag=stopping,
            clusterwide=namespace is None,
            namespaces=[namespace] if namespace else [],
        ),
        name="kopf",
    )
    try:
        await asyncio.wait({noticed, watching}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({watching}, timeout=KOPF_STOPS_WITHIN)
        if watching.done():
            watching.result()
        return watching.done()
    finally:
        noticed.cancel()
        watching.cancel()


async def _unreadable(api: Api, namespace: str | None) -> ApiRefused | ApiUnreachable | None:
    """Why RolloutFleets can't be read; None where they can."""
    try:
        await api.list(KIND, namespace, limit=1)
    except (ApiRefused, ApiUnreachable) as error:
        return error
    return None


async def _until_known(api: Api, namespace: str | None, stopping: asyncio.Event) -> None:
    """Wait for the CRD: it may be installed after the operator, and kopf watches only what is there when it begins."""
    warned = False
    while not stopping.is_set() and (why := await _unreadable(api, namespace)) is not None:
        if not warned:
            logger.warning("waiting until RolloutFleets can be read: %s", why)
            warned = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), CRD_EVERY)
