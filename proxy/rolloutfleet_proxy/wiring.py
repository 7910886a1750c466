"""One proxy put together: its parts, opened in order and closed in reverse. No other module knows of all of them."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.background import StatsLines, Work, every, running, sweeping
from rolloutfleet_proxy.capture.answering import Answering
from rolloutfleet_proxy.capture.endpoint import Endpoint
from rolloutfleet_proxy.capture.generation import Generator
from rolloutfleet_proxy.capture.pacing import Pace
from rolloutfleet_proxy.capture.prompting import Prompting
from rolloutfleet_proxy.capture.turn import TurnMaker
from rolloutfleet_proxy.cluster.gathering import Gatherer
from rolloutfleet_proxy.cluster.ownership import Ownership
from rolloutfleet_proxy.cluster.peers import Peer, Peers
from rolloutfleet_proxy.cluster.placement import Placement
from rolloutfleet_proxy.cluster.weights import EngineCommands, FleetWeights
from rolloutfleet_proxy.control.dependencies import Services
from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.domain.errors import Stopping
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.errors import CallGrammars
from rolloutfleet_proxy.engine.probing import Probing
from rolloutfleet_proxy.http.in_flight import InFlight
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.lifecycle.adopted import Adopted
from rolloutfleet_proxy.lifecycle.folder import DumpFolder, folder_of
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.process import allocator, resident
from rolloutfleet_proxy.process.allocator import Trimming
from rolloutfleet_proxy.process.collector import Collections
from rolloutfleet_proxy.process.drain import Drains, Host, NoHost
from rolloutfleet_proxy.process.under_way import UnderWay
from rolloutfleet_proxy.reloading import follow_key, follow_settings
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.dumps import DumpService
from rolloutfleet_proxy.services.exports import ExportService
from rolloutfleet_proxy.services.figures import Figures
from rolloutfleet_proxy.services.importing import Importer
from rolloutfleet_proxy.services.models import Models
from rolloutfleet_proxy.services.notes import write_soon
from rolloutfleet_proxy.services.pause_gate import PauseGate
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.shards import ShardService
from rolloutfleet_proxy.services.sweeping import Sweeper
from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.auth import (
    admin_key_file,
    control_key,
    first_admin_key,
    gateway_key,
    load_admin_keys,
    own_admin_keys,
)
from rolloutfleet_proxy.sessions.paths import Paths
from rolloutfleet_proxy.sessions.sessions import Sessions
from rolloutfleet_proxy.settings import SettingsInForce, SettingsSource
from rolloutfleet_proxy.shards.shelf import Shards
from rolloutfleet_proxy.store import boots, extent, remains
from rolloutfleet_proxy.store.boots import Crash
from rolloutfleet_proxy.store.clock import ServedClock
from rolloutfleet_proxy.store.compacting import compact
from rolloutfleet_proxy.store.database import Belonging, Database, open_database
from rolloutfleet_proxy.store.reader import Reader
from rolloutfleet_proxy.store.sessions import count_by_state
from rolloutfleet_proxy.store.weights import load
from rolloutfleet_proxy.store.writer import StoreBroken, StoreFull, Writer
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.metrics import Metrics
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.tokens.render_process import ModelSource
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing

EVERY = 5.0
"""Seconds between looks at what is done by itself: leases and shards that expire, rows and pages to be freed."""

STORE_FOLDER = "store"
SHARDS_FOLDER = "shards"

MODELS_FOLDER = "models"
HUB_TOKEN = "HF_TOKEN"
"""Where the environment holds the key to gated models."""

_SESSIONS_SHARE, _IDS_SHARE, _TEXT_SHARE, _PAGES_SHARE = 0.25, 0.4375, 0.1875, 0.125
"""Of the caches' bytes: for sessions' trees, for the ids of turns, for text with its ids, and for the store's pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A proxy that is open: what the app sends requests to, and what those on their way are counted by."""

    services: Services
    endpoint: Endpoint
    in_flight: InFlight
    under_way: UnderWay


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a process was told, and has made ready, before it opens its proxy."""

    host: Host = field(default_factory=NoHost)
    crash: Crash | None = None
    """How the last worker died, where the parent saw it."""
    chat_format: ChatFormat | None = None
    """Loaded already."""


class _Work:
    """What a drain waits for, and what it cuts."""

    def __init__(self, metrics: Metrics, gate: PauseGate, under_way: UnderWay, registry: Sessions) -> None:
        self._metrics = metrics
        self._gate = gate
        self._others = under_way
        self._registry = registry

    def under_way(self, before: float) -> int:
        calls = self._metrics.in_flight - self._gate.unbegun
        return max(0, calls) + self._others.before(before)

    def cut(self) -> None:
        self._registry.end_calls(Stopping())
        self._others.cut()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storage:
    """What is on disk, and who reads and writes it."""

    database: Database
    owner: Owner
    clock: ServedClock
    writer: Writer
    reader: Reader
    recounting: Reader
    """For reads that may look at all there is, and take as long as there is much."""
    shards: Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """What is held in memory of sessions and of calls under way."""

    settings: SettingsInForce
    registry: Sessions
    paths: Paths
    admission: Admission
    adopted: Adopted
    seals: Seals
    gate: PauseGate
    drains: Drains
    metrics: Metrics
    under_way: UnderWay
    in_flight: InFlight
    large_bodies: ThreadPoolExecutor
    """The one thread on which requests of many megabytes are read, one at a time: `/health` goes on beside it."""


@asynccontextmanager
async def open_proxy(
    settings: ProxySettings, start: Start, source: SettingsSource | None = None
) -> AsyncIterator[Opened]:
    """Open the store and everything that stands on it; close it all at the end. It follows changes of the source.

    Raises StoreUnusable, BadKeyFile, and ModelUnreadable.
    """
    admin = own_admin_keys(settings)
    async with AsyncExitStack() as stack:
        storage = await _open_storage(stack, settings)
        tokenizing = await _open_tokenizing(settings, start.chat_format)
        stack.push_async_callback(tokenizing.close)
        engine = _engine(settings)
        stack.push_async_callback(engine.aclose)
        peers = await _peers(storage, settings)
        stack.push_async_callback(peers.close)
        memory = await _memory(stack, storage, tokenizing, settings, start.host)
        access = Access(admin=admin, registry=memory.registry, seals=memory.seals)
        probing = Probing()
        services = await _services(stack, storage, memory, tokenizing, engine, probing, peers, access)
        endpoint = _endpoint(storage, memory, tokenizing, engine, services)
        stack.push_async_callback(_write_last_words, storage.writer, memory.drains)
        stack.push_async_callback(services.dumps.retire_at_the_end)
        stack.push_async_callback(_end_calls, memory.registry)
        await memory.drains.boot(start.crash)
        stack.push_async_callback(memory.drains.close)
        peers.begin(services.weights, own=partial(_as_peer, peers, memory))
        lines = StatsLines(memory.metrics, memory.admission)
        # With the memory of the line before: whoever starts the next proxy waits for this one's end.
        stack.callback(lines.tell)
        work = _background_work(storage, memory, services, engine, probing)
        work |= _following(memory, access, engine, peers, source)
        work["stats line"] = lines.keep_telling(settings.log.stats_interval)
        await stack.enter_async_context(running(work))
        yield Opened(services=services, endpoint=endpoint, in_flight=memory.in_flight, under_way=memory.under_way)


def _background_work(
    storage: _Storage, memory: _Memory, services: Services, engine: Engine, probing: Probing
) -> dict[str, Work]:
    settings, writer = memory.settings, storage.writer
    often = partial(every, lambda: EVERY)
    work = {
        "boot": _note_boot(writer),
        "leases": often(services.exports.expire),
        "shards": often(storage.shards.tick),
        "sweep": sweeping(services.dumps, settings),
        "remains": often(partial(remains.clear, writer)),
        "compact": often(partial(compact, storage.database, writer)),
        "probe": probing.run(engine),
    }
    if settings.current.allocator.trim:
        work["trimming"] = every(lambda: allocator.EVERY, services.figures.trimming.look)
    return work


def _following(
    memory: _Memory, access: Access, engine: Engine, peers: Peers, source: SettingsSource | None
) -> dict[str, Work]:
    """What makes the settings follow their source, and keys their files."""
    settings = memory.settings.current

    def use(changed: ProxySettings) -> None:
        memory.admission.limits = changed.sessions.limits
        memory.gate.hold_for(changed.sessions.max_hold)
        peers.follow(changed.replicas)

    admin_keys = follow_key(admin_key_file(settings), load_admin_keys, access.use_admin_keys, what="the admin keys")
    work: dict[str, Work] = {"admin keys": admin_keys}
    if settings.gateway_api_key_file is not None:
        key = follow_key(settings.gateway_api_key_file, gateway_key, engine.use_key, what="the gateway's keys")
        work["gateway's keys"] = key
    if source is not None:
        work["settings"] = follow_settings(memory.settings, source, use)
    return work


async def _open_storage(stack: AsyncExitStack, settings: ProxySettings) -> _Storage:
    database = open_database(
        settings.state_dir / STORE_FOLDER,
        _belonging(settings),
        cache_bytes=int(_PAGES_SHARE * settings.cache_bytes),
        with_reserve=True,
    )
    stack.callback(database.close)
    clock = ServedClock(database.connect(read_only=True))
    writer = Writer(database, clock)
    stack.push_async_callback(writer.close)
    reader = Reader(database)
    stack.callback(reader.close)
    recounting = Reader(database, name="store-recount")
    stack.callback(recounting.close)
    shards = await Shards.open(settings.state_dir / SHARDS_FOLDER, writer, reader)
    stack.callback(shards.close)
    return _Storage(
        database=database,
        owner=Owner(settings.ordinal, database.store_id),
        clock=clock,
        writer=writer,
        reader=reader,
        recounting=recounting,
        shards=shards,
    )


def _engine(settings: ProxySettings) -> Engine:
    return Engine(
        settings.gateway_url,
        engine_urls=settings.engine_urls,
        api_key=gateway_key(settings.gateway_api_key_file),
        control_key=partial(control_key, settings.gateway_control_key_file),
        silence=settings.engine_timeout,
    )


async def _peers(storage: _Storage, settings: ProxySettings) -> Peers:
    return Peers(
        settings,
        ever=await storage.reader.run(extent.load),
        grown=lambda ever: write_soon(storage.writer, partial(extent.save, ever=ever)),
    )


async def _memory(
    stack: AsyncExitStack, storage: _Storage, tokenizing: Tokenizing, settings: ProxySettings, host: Host
) -> _Memory:
    reader, max_hold = storage.reader, settings.sessions.max_hold
    state, paused_for = await storage.writer.run(load)
    gate = PauseGate(state, max_hold=max_hold, paused_for=paused_for)
    metrics, under_way = Metrics(), UnderWay()
    registry = Sessions(
        reader, cache_bytes=int(_SESSIONS_SHARE * settings.cache_bytes), rules=tokenizing.chat_format.rules
    )
    large_bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large bodies")
    stack.callback(large_bodies.shutdown, wait=False, cancel_futures=True)
    return _Memory(
        settings=SettingsInForce(settings),
        registry=registry,
        paths=Paths(reader, cache_bytes=int(_IDS_SHARE * settings.cache_bytes)),
        admission=Admission(
            settings.sessions.limits,
            storage.database,
            sessions_open=(await reader.run(count_by_state))["open"],
            shard_bytes=lambda: storage.shards.nbytes,
        ),
        adopted=await Adopted.load(reader, storage.owner),
        seals=Seals(),
        gate=gate,
        drains=Drains(
            store=storage.writer,
            work=_Work(metrics, gate, under_way, registry),
            host=host,
            timeout=settings.drain_timeout,
            max_hold=max_hold,
            served=storage.clock.now,
        ),
        metrics=metrics,
        under_way=under_way,
        in_flight=InFlight(settings.in_flight_bytes),
        large_bodies=large_bodies,
    )


async def _services(
    stack: AsyncExitStack,
    storage: _Storage,
    memory: _Memory,
    tokenizing: Tokenizing,
    engine: Engine,
    probing: Probing,
    peers: Peers,
    access: Access,
) -> Services:
    """An import that a kill cut short is finished first."""
    settings, owner, writer, reader = memory.settings, storage.owner, storage.writer, storage.reader
    sessions = SessionService(
        writer=writer,
        reader=reader,
        recounting=storage.recounting,
        registry=memory.registry,
        paths=memory.paths,
        admission=memory.admission,
        drains=memory.drains,
        clock=storage.clock,
        owner=owner,
        settings=settings,
    )
    weights = WeightService(gate=memory.gate, store=writer, follow=sessions.follow_recovery)
    sweeper = _sweeper(storage, memory, sessions, peers)
    stack.push_async_callback(sweeper.close)
    folder = DumpFolder(folder_of(settings.current), owner)
    importer = Importer(writer, reader, storage.shards, folder=folder, adopted=memory.adopted, forget=sessions.forget)
    dumps = DumpService(
        folder=folder,
        importer=importer,
        sweeper=sweeper,
        drains=memory.drains,
        database=storage.database,
        owner=owner,
        settings=settings,
    )
    collections = Collections()
    collections.watch()
    stack.callback(collections.end)
    in_flight, metrics = memory.in_flight, memory.metrics
    trimming = Trimming(freed=lambda: in_flight.released + sweeper.released, quiet=lambda: metrics.in_flight == 0)
    exports = ExportService(
        writer=writer,
        reader=reader,
        shards=storage.shards,
        sessions=sessions,
        gate=memory.gate,
        owner=owner,
        settings=settings,
    )
    figures = Figures(
        settings=settings,
        owner=owner,
        database=storage.database,
        writer=writer,
        reader=reader,
        recounting=storage.recounting,
        registry=memory.registry,
        paths=memory.paths,
        tokenizing=tokenizing,
        admission=memory.admission,
        gate=memory.gate,
        metrics=memory.metrics,
        drains=memory.drains,
        dumps=dumps,
        shards=storage.shards,
        in_flight=memory.in_flight,
        trimming=trimming,
        collections=collections,
        probing=probing,
    )
    await importer.recover()
    return Services(
        access=access,
        sessions=sessions,
        exports=exports,
        dumps=dumps,
        shards=ShardService(shelf=storage.shards, admission=memory.admission, owner=owner, settings=settings),
        weights=weights,
        fleet_weights=FleetWeights(
            weights, ordinal=owner.ordinal, engines=EngineCommands(engine), clock=time.monotonic
        ),
        peers=peers,
        placement=Placement(peers, writer),
        ownership=Ownership(own=owner, peers=peers, adopted=memory.adopted, ephemeral=settings.current.ephemeral),
        drains=memory.drains,
        figures=figures,
        models=Models(
            settings=settings, context_length=tokenizing.chat_format.context_length, created=int(time.time())
        ),
        metrics=memory.metrics,
    )


def _sweeper(storage: _Storage, memory: _Memory, sessions: SessionService, peers: Peers) -> Sweeper:
    settings = memory.settings.current
    gatherer = Gatherer(
        storage.shards,
        storage.reader,
        peers,
        storage.owner,
        admin_key=lambda: first_admin_key(admin_key_file(settings)),
        limit=settings.shard_limit,
    )
    return Sweeper(
        reader=storage.reader,
        writer=storage.writer,
        registry=memory.registry,
        follow=sessions.follow_freed,
        seals=memory.seals,
        clock=storage.clock,
        owner=storage.owner,
        metrics=memory.metrics,
        gather=gatherer.of_session,
    )


def _endpoint(
    storage: _Storage, memory: _Memory, tokenizing: Tokenizing, engine: Engine, services: Services
) -> Endpoint:
    """The generation path."""
    settings, metrics, chat_format = memory.settings, memory.metrics, tokenizing.chat_format
    turns = TurnService(
        writer=storage.writer,
        reader=storage.reader,
        sessions=memory.registry,
        paths=memory.paths,
        admission=memory.admission,
    )
    maker = TurnMaker(
        prompting=Prompting(
            tokenizing=tokenizing, paths=memory.paths, reader=storage.reader, large_bodies=memory.large_bodies
        ),
        generator=Generator(
            engine=engine,
            gate=memory.gate,
            chat_format=chat_format,
            call_grammars=CallGrammars(time.monotonic),
            metrics=metrics,
            settings=settings,
        ),
        tokenizing=tokenizing,
        gate=memory.gate,
        turns=turns,
        metrics=metrics,
        settings=settings,
        sessions=services.sessions,
    )
    answering = Answering(
        turns=turns,
        metrics=metrics,
        token_bytes=chat_format.token_bytes,
        settings=settings,
        sessions=services.sessions,
    )
    return Endpoint(
        access=services.access,
        maker=maker,
        answering=answering,
        reading=Reading(
            strict=settings.current.compatibility.requests == "strict",
            takes_effort=chat_format.takes("reasoning_effort"),
            vocabulary_size=chat_format.vocabulary_size,
            holds_calls=chat_format.holds_calls,
        ),
        metrics=metrics,
        in_flight=memory.in_flight,
        drains=memory.drains,
        seals=memory.seals,
        pace=Pace(),
        large_bodies=memory.large_bodies,
        settings=settings,
    )


def _as_peer(peers: Peers, memory: _Memory) -> Peer:
    """This proxy, as its peers see it."""
    drains, gate, admission = memory.drains, memory.gate, memory.admission
    return Peer(
        ordinal=peers.own,
        url=peers.address(peers.own),
        state="draining" if drains.draining else "starting" if gate.starting else "ready",
        sessions_open=admission.sessions_open,
        room=admission.has_room(1),
    )


async def _end_calls(registry: Sessions) -> None:
    """End what is under way with a 503, as the proxy stops; return when it has ended."""
    for session in registry.end_calls(Stopping()):
        await session.calls.ended()


async def _note_boot(writer: Writer) -> None:
    """Measure the memory just after the boot, and write it to the boots' log."""
    taken = await asyncio.to_thread(resident.of_worker)
    write_soon(writer, lambda transaction: boots.measured(transaction, taken.rss_bytes))


async def _write_last_words(writer: Writer, drains: Drains) -> None:
    """Say in the store why this life ends, and with how much memory."""
    taken = await asyncio.to_thread(resident.of_worker)
    reason, drain = drains.last_words
    try:
        await writer.run(lambda transaction: boots.end(transaction, reason=reason, drain=drain, rss=taken.rss_bytes))
    except (StoreFull, StoreBroken) as error:
        logger.warning("why this life ends could not be written: %s", error)


def prepare(settings: ProxySettings) -> ChatFormat:
    """All that can be done, or found to be wrong, before the store is opened; returns the loaded chat format.

    Raises BadKeyFile and ModelUnreadable.
    """
    own_admin_keys(settings)
    gateway_key(settings.gateway_api_key_file)
    return _load(_model_source(settings))


async def _open_tokenizing(settings: ProxySettings, loaded: ChatFormat | None) -> Tokenizing:
    source = _model_source(settings)
    return Tokenizing(await asyncio.to_thread(_load, source) if loaded is None else loaded, source)


def _load(source: ModelSource) -> ChatFormat:
    return source.load(token=os.environ.get(HUB_TOKEN))


def _model_source(settings: ProxySettings) -> ModelSource:
    """A model on the hub is fetched once, to this proxy's volume; a restart downloads nothing."""
    tokenizer = settings.tokenizer
    return ModelSource(
        source=tokenizer.path or tokenizer.hub or settings.model,
        model=settings.model,
        renderer=tokenizer.renderer,
        thinking_retention=tokenizer.thinking_retention,
        download_to=str(settings.state_dir / MODELS_FOLDER),
        cache_bytes=int(_TEXT_SHARE * settings.cache_bytes),
    )


def _belonging(settings: ProxySettings) -> Belonging | None:
    return None if settings.fleet_uid is None else Belonging(settings.fleet_uid, settings.adopt)
