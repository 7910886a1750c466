"""One proxy put together: its parts, opened in order and closed in reverse. No other module knows of all of them."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from rolloutfleet.settings import MIB, ProxySettings
from rolloutfleet_proxy.background import StatsLines, Work, every, keep_copying, running, sweeping
from rolloutfleet_proxy.capture.answering import Answering
from rolloutfleet_proxy.capture.counting import AT_ONCE, Counting
from rolloutfleet_proxy.capture.endpoint import Endpoint
from rolloutfleet_proxy.capture.generation import Generator
from rolloutfleet_proxy.capture.pacing import Pace
from rolloutfleet_proxy.capture.prompting import Prompting
from rolloutfleet_proxy.capture.turn import TurnMaker
from rolloutfleet_proxy.cluster.gathering import Gatherer
from rolloutfleet_proxy.cluster.ownership import Ownership
from rolloutfleet_proxy.cluster.peers import Peer, Peers
from rolloutfleet_proxy.cluster.placement import Placement
from rolloutfleet_proxy.cluster.receipting import Receipting
from rolloutfleet_proxy.cluster.weights import FleetWeights
from rolloutfleet_proxy.control.dependencies import Services
from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.domain.errors import DomainError, Stopping
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.errors import StructuralTags
from rolloutfleet_proxy.engine.pause_gate import PauseGate
from rolloutfleet_proxy.engine.probing import Probing
from rolloutfleet_proxy.http.in_flight import InFlight
from rolloutfleet_proxy.lifecycle.adopted import Adopted
from rolloutfleet_proxy.lifecycle.folder import DumpFolder, folder_of, is_shared
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.private_files import tighten
from rolloutfleet_proxy.process import allocator, resident
from rolloutfleet_proxy.process.allocator import Trimming
from rolloutfleet_proxy.process.collector import Collections
from rolloutfleet_proxy.process.drain import Drains, Host, NoHost
from rolloutfleet_proxy.process.under_way import UnderWay
from rolloutfleet_proxy.reloading import follow_key, follow_settings
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.annotations import AnnotationService
from rolloutfleet_proxy.services.checking import Checking
from rolloutfleet_proxy.services.commits import REMEMBERED, Commits
from rolloutfleet_proxy.services.conversations import Conversations
from rolloutfleet_proxy.services.dumps import DumpService
from rolloutfleet_proxy.services.exports import ExportService
from rolloutfleet_proxy.services.figures import Figures
from rolloutfleet_proxy.services.importing import Importer
from rolloutfleet_proxy.services.keeping import Keeping
from rolloutfleet_proxy.services.models import Models
from rolloutfleet_proxy.services.notes import write_soon
from rolloutfleet_proxy.services.receipts import Receipts
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.shards import Shards, ShardService
from rolloutfleet_proxy.services.sweeping import Sweeper
from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.auth import (
    AdminKeys,
    admin_key_file,
    control_key,
    first_admin_key,
    gateway_key,
    load_admin_keys,
    own_admin_keys,
)
from rolloutfleet_proxy.sessions.paths import Paths
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.settings import SettingsInForce, SettingsSource
from rolloutfleet_proxy.store import boots, extent, filling, remains
from rolloutfleet_proxy.store import commits as last_commits
from rolloutfleet_proxy.store.boots import Crash
from rolloutfleet_proxy.store.compacting import compact
from rolloutfleet_proxy.store.database import Belonging, open_database
from rolloutfleet_proxy.store.sessions import count_open
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.tally import Tally
from rolloutfleet_proxy.store.weights import load
from rolloutfleet_proxy.store.writer import Writer
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.metrics import Metrics
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing

HOUSEKEEPING_INTERVAL = 5.0
"""Seconds between looks at what is done by itself: leases and shards that expire, deadlines, rows to be freed."""

TICK_INTERVAL = 1.0
LONGEST_STEP = 5.0
"""Seconds that the served clock goes on between two of its ticks at the most."""

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
    counting: Counting
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What the services and the generation path are made of."""

    settings: SettingsInForce
    store: Store
    shards: Shards
    tokenizing: Tokenizing
    engine: Engine
    probing: Probing
    tally: Tally
    checking: Checking
    peers: Peers
    access: Access
    registry: SessionRegistry
    paths: Paths
    admission: Admission
    adopted: Adopted
    seals: Seals
    commits: Commits
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

    Raises StoreUnusable, DamageFound, BadKeyFile, and ModelUnreadable.
    """
    admin = own_admin_keys(settings)
    async with AsyncExitStack() as stack:
        parts = await _parts(stack, settings, start, admin)
        services = await _services(stack, parts)
        endpoint = _endpoint(parts, services)
        keeping = Keeping(store=parts.store, settings=parts.settings, metrics=parts.metrics)
        stack.push_async_callback(keeping.close)
        stack.push_async_callback(_write_last_words, parts.store.writer, parts.drains, parts.commits)
        stack.push_async_callback(services.dumps.retire_at_the_end)
        stack.push_async_callback(_end_calls, parts.registry)
        await parts.drains.boot(start.crash)
        stack.push_async_callback(parts.drains.close)
        lines = StatsLines(parts.metrics, parts.admission)
        # With the memory of the line before: whoever starts the next proxy waits for this one's end.
        stack.callback(lines.log_line)
        work = _background_work(parts, services)
        work |= _following(parts, source)
        work["peers"] = parts.peers.begin(services.weights, own=partial(_as_peer, parts))
        work["keeping"] = keep_copying(keeping)
        work["stats line"] = lines.keep_logging(settings.log.stats_interval)
        await stack.enter_async_context(running(work))
        yield Opened(
            services=services,
            endpoint=endpoint,
            counting=_counting(parts, endpoint),
            in_flight=parts.in_flight,
            under_way=parts.under_way,
        )


def _background_work(parts: _Parts, services: Services) -> dict[str, Work]:
    settings, store, writer = parts.settings, parts.store, parts.store.writer
    often = partial(every, lambda: HOUSEKEEPING_INTERVAL)
    work = {
        "boot": _note_boot(writer),
        "check": parts.checking.after_a_crash(),
        "tally": every(lambda: TICK_INTERVAL, parts.tally.write),
        "clock": every(lambda: TICK_INTERVAL, store.clock.tick),
        "leases": often(services.exports.expire),
        "groups": often(services.sessions.close_late_groups),
        "shards": often(parts.shards.tick),
        "sweep": sweeping(services.dumps, settings),
        "remains": often(partial(remains.clear, writer)),
        "filling": often(partial(filling.fill, store)),
        "compact": often(partial(compact, store.database, writer)),
        "probe": parts.probing.run(parts.engine),
    }
    if settings.current.allocator.trim:
        work["trimming"] = every(lambda: allocator.TRIM_INTERVAL, services.figures.trimming.look)
    return work


def _following(parts: _Parts, source: SettingsSource | None) -> dict[str, Work]:
    """What makes the settings follow their source, and keys their files."""
    settings = parts.settings.current
    if settings.memory.rss_budget < settings.smallest_budget:
        logger.warning(
            "memory.rss_budget of %d MiB has no room for two large requests; %d MiB is the smallest that has",
            settings.memory.rss_budget // MIB,
            settings.smallest_budget // MIB,
        )

    def use(changed: ProxySettings) -> None:
        parts.admission.limits = changed.sessions.limits
        parts.gate.hold_for(changed.sessions.max_hold)
        parts.drains.max_hold = changed.sessions.max_hold
        parts.peers.follow(changed.replicas, lost=changed.lost_proxies)
        parts.in_flight.limit = changed.most_in_flight
        parts.store.writer.keep_fraction = changed.inspect.keep.fraction

    use_admin_keys = parts.access.use_admin_keys
    admin_keys = follow_key(admin_key_file(settings), load_admin_keys, use_admin_keys, what="the admin keys")
    work: dict[str, Work] = {"admin keys": admin_keys}
    if settings.gateway_api_key_file is not None:
        key = follow_key(settings.gateway_api_key_file, gateway_key, parts.engine.use_key, what="the gateway's keys")
        work["gateway's keys"] = key
    if source is not None:
        work["settings"] = follow_settings(parts.settings, source, use)
    return work


async def _parts(stack: AsyncExitStack, settings: ProxySettings, start: Start, admin: AdminKeys) -> _Parts:
    store = _open_store(stack, settings)
    shards = await Shards.open(settings.state_dir / SHARDS_FOLDER, store)
    stack.callback(shards.close)
    tokenizing = await _open_tokenizing(settings, start.chat_format)
    stack.push_async_callback(tokenizing.close)
    engine = _engine(settings)
    stack.push_async_callback(engine.aclose)
    peers = await _peers(store, settings)
    stack.push_async_callback(peers.close)
    large_bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large bodies")
    stack.callback(large_bodies.shutdown, wait=False, cancel_futures=True)
    reader, max_hold = store.reader, settings.sessions.max_hold
    state, paused_for = await store.write(load)
    commits = Commits(await reader.run(partial(last_commits.load, most=REMEMBERED)))
    gate = PauseGate(state, max_hold=max_hold, paused_for=paused_for)
    metrics, under_way, seals = Metrics(), UnderWay(), Seals()
    tally, checking = Tally(store), Checking(store=store, metrics=metrics)
    await checking.compare(tally)
    registry = SessionRegistry(
        reader, cache_bytes=int(_SESSIONS_SHARE * settings.most_cached), rules=tokenizing.chat_format.rules
    )
    access = Access(admin=admin, registry=registry, seals=seals)
    peers.voucher = lambda: access.admin.voucher()
    return _Parts(
        settings=SettingsInForce(settings, live_generation=settings.generation),
        store=store,
        shards=shards,
        tokenizing=tokenizing,
        engine=engine,
        probing=Probing(),
        tally=tally,
        checking=checking,
        peers=peers,
        access=access,
        registry=registry,
        paths=Paths(reader, cache_bytes=int(_IDS_SHARE * settings.most_cached)),
        admission=Admission(
            settings.sessions.limits,
            store.database,
            sessions_open=await reader.run(count_open),
            shard_bytes=lambda: shards.nbytes,
        ),
        adopted=await Adopted.load(reader, store.owner),
        seals=seals,
        commits=commits,
        gate=gate,
        drains=Drains(
            store=store.writer,
            under_way=lambda before: max(0, metrics.in_flight - gate.unbegun) + under_way.before(before),
            cut=partial(_cut_calls, registry, under_way),
            host=start.host,
            timeout=settings.drain_timeout,
            leave_time=settings.leave_time,
            max_hold=max_hold,
            served=store.clock.now,
            begins_to_hold=partial(_begin_to_hold, commits, peers),
        ),
        metrics=metrics,
        under_way=under_way,
        in_flight=InFlight(settings.most_in_flight),
        large_bodies=large_bodies,
    )


def _begin_to_hold(commits: Commits, peers: Peers) -> None:
    commits.end_readers()
    peers.look_again()


def _open_store(stack: AsyncExitStack, settings: ProxySettings) -> Store:
    folder = settings.state_dir / STORE_FOLDER
    tighten((*settings.state_dir.glob("*"), *folder.glob("*")))
    database = open_database(
        folder,
        _belonging(settings),
        cache_bytes=int(_PAGES_SHARE * settings.most_cached),
        with_reserve=True,
    )
    stack.callback(database.close)
    store = Store.over(database, ordinal=settings.ordinal, longest_step=LONGEST_STEP)
    store.writer.keep_fraction = settings.inspect.keep.fraction
    stack.push_async_callback(store.close)
    return store


def _engine(settings: ProxySettings) -> Engine:
    return Engine(
        settings.gateway_url,
        engine_urls=settings.engine_urls,
        api_key=gateway_key(settings.gateway_api_key_file),
        control_key=partial(control_key, settings.gateway_control_key_file),
        silence=settings.engine_timeout,
    )


async def _peers(store: Store, settings: ProxySettings) -> Peers:
    return Peers(
        settings,
        ever=await store.read(extent.load),
        grown=lambda ever: write_soon(store.writer, partial(extent.save, ever=ever)),
    )


async def _services(stack: AsyncExitStack, parts: _Parts) -> Services:
    """An import that a kill cut short is finished first."""
    settings, store, shards, peers, drains = parts.settings, parts.store, parts.shards, parts.peers, parts.drains
    chat_format = parts.tokenizing.chat_format
    sessions = SessionService(
        store=store,
        registry=parts.registry,
        paths=parts.paths,
        admission=parts.admission,
        drains=drains,
        settings=settings,
        check_arguments=chat_format.check_arguments,
    )
    weights = WeightService(gate=parts.gate, writer=store.writer, follow=sessions.follow_recovery)
    sweeper = _sweeper(parts, sessions)
    stack.push_async_callback(sweeper.close)

    def folder_now() -> DumpFolder:
        return DumpFolder(folder_of(settings.current), store.owner, shared=is_shared(settings.current))

    importer = Importer(store, shards, folder_now=folder_now, adopted=parts.adopted, forget=sessions.forget)
    dumps = DumpService(
        folder_now=folder_now, importer=importer, sweeper=sweeper, drains=drains, store=store, settings=settings
    )
    collections = Collections()
    collections.watch()
    stack.callback(collections.end)
    in_flight, metrics = parts.in_flight, parts.metrics
    trimming = Trimming(freed=lambda: in_flight.released + sweeper.released, quiet=lambda: metrics.in_flight == 0)
    figures = Figures(
        sessions=sessions,
        tokenizing=parts.tokenizing,
        gate=parts.gate,
        metrics=metrics,
        dumps=dumps,
        shards=shards,
        in_flight=in_flight,
        trimming=trimming,
        collections=collections,
        probing=parts.probing,
        checking=parts.checking,
        wait_for_owners=lambda: peers.waiting,
    )
    await importer.recover()
    conversations = Conversations(store, chat_format.vocabulary.token_bytes)
    stack.callback(conversations.close)
    receipting = Receipting(peers)
    stack.push_async_callback(receipting.close)
    turns = TurnService(
        store=store,
        sessions=parts.registry,
        paths=parts.paths,
        admission=parts.admission,
        commits=parts.commits,
    )
    receipts = Receipts(turns)
    drains.awaits_receipts = receipts.are_awaited
    return Services(
        access=parts.access,
        sessions=sessions,
        commits=parts.commits,
        conversations=conversations,
        annotations=AnnotationService(store=store, admission=parts.admission),
        turns=turns,
        receipts=receipts,
        exports=ExportService(
            store=store, shards=shards, sessions=sessions, gate=parts.gate, settings=settings, metrics=metrics
        ),
        dumps=dumps,
        shards=ShardService(shelf=shards, admission=parts.admission, owner=store.owner, settings=settings),
        weights=weights,
        fleet_weights=FleetWeights(weights, ordinal=peers.own, engines=parts.engine, clock=time.monotonic),
        peers=peers,
        placement=Placement(peers, store.writer, drains),
        receipting=receipting,
        ownership=Ownership(own=store.owner, peers=peers, adopted=parts.adopted, ephemeral=settings.current.ephemeral),
        drains=drains,
        figures=figures,
        models=Models(settings=settings, context_length=chat_format.context_length, created=int(time.time())),
        metrics=metrics,
    )


def _sweeper(parts: _Parts, sessions: SessionService) -> Sweeper:
    settings = parts.settings.current
    gatherer = Gatherer(
        parts.shards,
        parts.store.reader,
        parts.peers,
        parts.store.owner,
        admin_key=lambda: first_admin_key(admin_key_file(settings)),
        limit=settings.shard_limit,
    )
    return Sweeper(
        store=parts.store,
        registry=parts.registry,
        follow=sessions.follow_freed,
        seals=parts.seals,
        metrics=parts.metrics,
        gather=gatherer.of_session,
    )


def _endpoint(parts: _Parts, services: Services) -> Endpoint:
    """The generation path."""
    settings, metrics, tokenizing = parts.settings, parts.metrics, parts.tokenizing
    chat_format = tokenizing.chat_format
    turns = services.turns
    maker = TurnMaker(
        reader=parts.store.reader,
        prompting=Prompting(
            tokenizing=tokenizing, paths=parts.paths, reader=parts.store.reader, large_bodies=parts.large_bodies
        ),
        generator=Generator(
            engine=parts.engine,
            gate=parts.gate,
            chat_format=chat_format,
            structural_tags=StructuralTags(time.monotonic),
            metrics=metrics,
            settings=settings,
        ),
        tokenizing=tokenizing,
        gate=parts.gate,
        turns=turns,
        metrics=metrics,
        settings=settings,
        sessions=services.sessions,
    )
    answering = Answering(
        turns=turns,
        receipts=services.receipts,
        metrics=metrics,
        token_bytes=chat_format.vocabulary.token_bytes,
        settings=settings,
        sessions=services.sessions,
    )
    return Endpoint(
        access=services.access,
        maker=maker,
        answering=answering,
        reading=Reading(
            strict=settings.current.compatibility.requests == "strict",
            replaces_images=settings.current.compatibility.images == "placeholder",
            efforts=chat_format.efforts,
            vocabulary_size=chat_format.vocabulary_size,
            holds_calls=chat_format.grammar.holds_calls,
        ),
        metrics=metrics,
        in_flight=parts.in_flight,
        drains=parts.drains,
        pace=Pace(),
        large_bodies=parts.large_bodies,
        settings=settings,
    )


def _counting(parts: _Parts, endpoint: Endpoint) -> Counting:
    """It reads requests and makes prompts as the generation path does."""
    return Counting(
        access=parts.access,
        prompting=endpoint.maker.prompting,
        reading=endpoint.reading,
        metrics=parts.metrics,
        in_flight=parts.in_flight,
        pace=endpoint.pace,
        large_bodies=parts.large_bodies,
        settings=parts.settings,
        places=asyncio.Semaphore(AT_ONCE),
    )


def _as_peer(parts: _Parts) -> Peer:
    """This proxy, as its peers see it."""
    drains, gate, admission, peers = parts.drains, parts.gate, parts.admission, parts.peers
    starting = gate.starting or parts.store.locked() is not None
    return Peer(
        ordinal=peers.own,
        url=peers.address(peers.own),
        state="draining" if drains.draining else "starting" if starting else "ready",
        sessions_open=admission.sessions_open,
        room=admission.has_room(1),
    )


def _cut_calls(registry: SessionRegistry, others: UnderWay) -> None:
    registry.end_calls(Stopping())
    others.cut()


async def _end_calls(registry: SessionRegistry) -> None:
    """End what is under way with a 503, as the proxy stops; return when it has ended."""
    for session in registry.end_calls(Stopping()):
        await session.calls.ended()


async def _note_boot(writer: Writer) -> None:
    """Measure the memory just after the boot, and write it to the boots' log."""
    taken = await asyncio.to_thread(resident.of_worker)
    write_soon(writer, lambda transaction: boots.measured(transaction, taken.rss_bytes))


async def _write_last_words(writer: Writer, drains: Drains, commits: Commits) -> None:
    """Say in the store why this life ends, with how much memory, and which turns it committed last."""
    taken = await asyncio.to_thread(resident.of_worker)
    reason, drain = drains.last_words
    try:
        await writer.run(lambda transaction: boots.end(transaction, reason=reason, drain=drain, rss=taken.rss_bytes))
        await writer.run(partial(last_commits.keep, commits=commits.remembered()))
    except DomainError as error:
        logger.warning("the reason for ending and the last commits could not be recorded: %s", error)


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
        special_tokens_in_text=tokenizer.special_tokens_in_text,
        download_to=str(settings.state_dir / MODELS_FOLDER),
        cache_bytes=int(_TEXT_SHARE * settings.most_cached),
    )


def _belonging(settings: ProxySettings) -> Belonging | None:
    return None if settings.fleet_uid is None else Belonging(settings.fleet_uid, settings.adopt)
