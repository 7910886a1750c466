"""One proxy: its parts, opened in order and closed in reverse, and the few acts that touch several of them."""

import asyncio
import contextlib
import ipaddress
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.chat.answer import Answers
from rolloutfleet_proxy.cleanup.choosing import Patience
from rolloutfleet_proxy.cleanup.files import DumpWriter
from rolloutfleet_proxy.cleanup.freeing import Freed
from rolloutfleet_proxy.cleanup.sealing import Seals
from rolloutfleet_proxy.cleanup.sweeping import Orders, Sweeper
from rolloutfleet_proxy.domain.errors import Stopping
from rolloutfleet_proxy.dumps.adopted import Adopted
from rolloutfleet_proxy.dumps.folder import DumpFolder, folder_of
from rolloutfleet_proxy.dumps.importing import Importer
from rolloutfleet_proxy.engines.client import Engine
from rolloutfleet_proxy.engines.grammar_refusals import CallGrammars
from rolloutfleet_proxy.engines.probing import Probing
from rolloutfleet_proxy.fleet import extent
from rolloutfleet_proxy.fleet.gathering import Gatherer
from rolloutfleet_proxy.fleet.peers import Peer, Peers
from rolloutfleet_proxy.fleet.placement import Placement
from rolloutfleet_proxy.fleet.weights import EngineCommands, FleetWeights
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.memory import resident
from rolloutfleet_proxy.memory.allocator import Trimming, trimmed
from rolloutfleet_proxy.memory.collector import Collections
from rolloutfleet_proxy.memory.in_flight import InFlight
from rolloutfleet_proxy.pacing import Pace
from rolloutfleet_proxy.refusals import ended
from rolloutfleet_proxy.restarts import boots
from rolloutfleet_proxy.restarts.boots import Crash
from rolloutfleet_proxy.restarts.drain import Drains, Host, NoHost
from rolloutfleet_proxy.restarts.under_way import UnderWay
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.auth import (
    AdminKeys,
    BadKeyFile,
    first_admin_key,
    gateway_key,
    load_admin_keys,
    make_admin_key,
)
from rolloutfleet_proxy.sessions.sessions import OPEN, Session, Sessions, count_by_state, touch
from rolloutfleet_proxy.shards.shelf import Shards
from rolloutfleet_proxy.store.clock import ServedClock
from rolloutfleet_proxy.store.database import Belonging, Database, open_database
from rolloutfleet_proxy.store.reader import Reader
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import StoreBroken, StoreClosed, StoreFull, Writer
from rolloutfleet_proxy.telemetry import events, logger
from rolloutfleet_proxy.telemetry.metrics import Metrics
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.tokens.render_process import ModelSource
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing
from rolloutfleet_proxy.turns.paths import Paths
from rolloutfleet_proxy.weights.recovery import Applied
from rolloutfleet_proxy.weights.weights import Weights

STORE_FOLDER = "store"
SHARDS_FOLDER = "shards"
ADMIN_KEY_FILE = "admin.key"

MODELS_FOLDER = "models"
HUB_TOKEN = "HF_TOKEN"
"""Where the environment holds the key to gated models."""

RETIRING = 20.0
"""Seconds in which an ephemeral proxy dumps all it has when it is stopped: within a pod's grace, which is
`drain_timeout` and 30 more."""

_SESSIONS_SHARE, _IDS_SHARE, _TEXT_SHARE, _PAGES_SHARE = 0.25, 0.4375, 0.1875, 0.125
"""Of the caches' bytes: for sessions' trees, for the ids of turns, for text with its ids, and for the store's pages."""


@dataclass(eq=False, slots=True, kw_only=True)
class Proxy:
    """What handlers are given."""

    settings: ProxySettings
    owner: Owner
    admin: AdminKeys
    database: Database
    clock: ServedClock
    writer: Writer
    reader: Reader
    recounting: Reader
    """For reads that may look at all there is, and take as long as there is much."""
    shards: Shards
    gatherer: Gatherer
    sessions: Sessions
    paths: Paths
    admission: Admission
    tokenizing: Tokenizing
    answers: Answers
    engine: Engine
    weights: Weights
    fleet_weights: FleetWeights
    peers: Peers
    placement: Placement
    dumps: DumpFolder
    importer: Importer
    adopted: Adopted
    metrics: Metrics
    seals: Seals
    sweeper: Sweeper
    in_flight: InFlight
    pace: Pace
    trimming: Trimming
    collections: Collections
    large_bodies: Executor
    """The one thread on which requests of many megabytes are read, one at a time: `/health` goes on beside it."""
    under_way: UnderWay
    drains: Drains
    probing: Probing
    call_grammars: CallGrammars
    settings_error: str | None = None
    """What is wrong with settings that were read since the start, if something is."""
    settings_waiting: tuple[str, ...] = ()
    """Settings that a restart would change, or another release has."""
    started_at: float = field(default_factory=time.time)

    @property
    def admin_key_file(self) -> Path:
        """The file with the admin's keys, the newest first; read whenever one is needed."""
        return _admin_key_file(self.settings)

    @property
    def chat_format(self) -> ChatFormat:
        return self.tokenizing.chat_format

    @property
    def cleanup(self) -> Orders:
        """What the settings say of cleaning up now."""
        sessions, folder = self.settings.sessions, folder_of(self.settings)
        return Orders(
            Patience(sessions.stale_after, sessions.unclaimed_after),
            None if folder is None else DumpWriter(folder, ordinal=self.owner.ordinal, owed=self._owed_on(folder)),
            keep_age=sessions.dump.keep.age,
            keep_bytes=sessions.dump.keep.bytes,
        )

    def _owed_on(self, folder: Path) -> Callable[[], int]:
        """What the disk of a folder owes to the store, where it is the store's own."""
        reserve, store = self.database.reserve, self.database.folder
        if reserve is None or not _on_one_disk(folder, store):
            return lambda: 0
        return lambda: reserve.owed

    def as_peer(self) -> Peer:
        """This proxy, as its peers see it."""
        return Peer(
            ordinal=self.owner.ordinal,
            url=self.peers.address(self.owner.ordinal),
            state="draining" if self.drains.draining else "starting" if self.weights.starting else "ready",
            sessions_open=self.admission.sessions_open,
            room=self.admission.has_room(1),
        )

    def write_soon(self, operation: Callable[[Transaction], object]) -> None:
        """Write what no answer waits for. A failure is logged; the rows then say less, never something wrong."""
        _write_soon(self.writer, operation)

    def end_session(self, session: Session, state: str, *, freed: Iterable[str]) -> None:
        """Follow the store: the session has ended, so its calls in flight do, and rows that are gone are forgotten."""
        if session.state == OPEN:
            self.admission.sessions_open -= 1
        session.state = state
        self.sessions.committed(session)
        session.calls.end_all(ended(session))
        self.drains.look_again()
        self.paths.forget(session.id, session.briefs)
        self.forget(freed)

    def note_use(self, session: Session) -> None:
        """Count a call that committed nothing as use of its session all the same."""
        with contextlib.suppress(StoreClosed):
            self.write_soon(partial(touch, session=session.id))

    def follow_settings(self, settings: ProxySettings) -> None:
        """Let changed settings be in force."""
        self.settings = settings
        self.admission.limits = settings.sessions.limits
        self.weights.hold_for(settings.sessions.max_hold)
        self.peers.follow(settings.replicas)

    def use_admin_keys(self, keys: AdminKeys) -> None:
        """These are the admin's from now on."""
        self.admin = keys

    def follow_freed(self, freed: Freed) -> None:
        """Follow the store: sessions have been reclaimed."""
        self.admission.sessions_open -= freed.were_open
        self.forget(freed.names)
        for session, newest in freed.reclaimed:
            # Memory may have let go of the session, and still hold ids of its turns.
            self.paths.forget(session, range(1, newest + 1))

    def follow_recovery(self, applied: Applied) -> None:
        """Follow the store: a recovery has ended sessions, and freed rows."""
        for name, state in applied.ended:
            session = self.sessions.changed(name)
            if session is None:
                self.admission.sessions_open -= 1
            else:
                self.end_session(session, state, freed=())
        self.forget(applied.freed)

    def cut_calls(self) -> list[Session]:
        """End what is under way with a 503, as the proxy stops; returns the sessions that had calls."""
        busy = self.sessions.in_memory(lambda session: len(session.calls) > 0)
        for session in busy:
            session.calls.end_all(Stopping())
        return busy

    async def end_calls(self) -> None:
        """The same, and return when they have ended."""
        for session in self.cut_calls():
            await session.calls.ended()

    async def retire(self) -> None:
        """Dump what a store that dies with its pod holds, when the proxy was told to stop."""
        orders = self.cleanup
        if not (self.settings.ephemeral and self.drains.stopped) or orders.folder is None:
            return
        try:
            async with asyncio.timeout(RETIRING):
                reclaimed = await self.sweeper.retire(orders)
        except TimeoutError:
            logger.error("there was no time to dump everything: some of it goes with the pod")
        else:
            logger.info("%d sessions were dumped before the pod goes", reclaimed)

    async def note_boot(self) -> None:
        """Measure the memory just after the boot, and write it to the boots' log."""
        taken = await asyncio.to_thread(resident.of_worker)
        self.write_soon(lambda transaction: boots.measured(transaction, taken.rss_bytes))

    async def write_last_words(self) -> None:
        """Say in the store why this life ends, and with how much memory."""
        taken = await asyncio.to_thread(resident.of_worker)
        reason, drain = self.drains.last_words
        try:
            await self.writer.run(
                lambda transaction: boots.end(transaction, reason=reason, drain=drain, rss=taken.rss_bytes)
            )
        except (StoreFull, StoreBroken) as error:
            logger.warning("why this life ends could not be written: %s", error)

    def forget(self, names: Iterable[str]) -> None:
        """Drop what memory holds of sessions whose rows are gone."""
        for name in names:
            session = self.sessions.forget(name)
            if session is not None:
                self.paths.forget(session.id, session.briefs)

    def cache_sizes(self) -> dict[str, int]:
        """Bytes of each cache."""
        return {
            "sessions": self.sessions.cached_bytes,
            "ids": self.paths.cached_bytes,
            "text": self.tokenizing.cache_nbytes,
            "pages": self.database.cached_bytes,
        }

    def queue_lengths(self) -> dict[str, int]:
        """What waits for each thread."""
        return {**self.tokenizing.waiting, "store_writer": self.writer.waiting, "log": events.waiting()}


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

    def __init__(self, metrics: Metrics, weights: Weights, under_way: UnderWay, cut: Callable[[], object]) -> None:
        self._metrics = metrics
        self._weights = weights
        self._others = under_way
        self._cut = cut

    def under_way(self, before: float) -> int:
        calls = self._metrics.in_flight - self._weights.unbegun
        return max(0, calls) + self._others.before(before)

    def cut(self) -> None:
        self._cut()
        self._others.cut()


@asynccontextmanager
async def open_proxy(settings: ProxySettings, start: Start) -> AsyncIterator[Proxy]:
    """Open the store and everything that stands on it; close it all at the end.

    Raises StoreUnusable, BadKeyFile, and ModelUnreadable.
    """
    admin = _admin_keys(settings)
    async with AsyncExitStack() as stack:
        database = open_database(
            settings.state_dir / STORE_FOLDER,
            _belonging(settings),
            cache_bytes=int(_PAGES_SHARE * settings.cache_bytes),
            with_reserve=True,
        )
        stack.callback(database.close)
        owner = Owner(settings.ordinal, database.store_id)
        clock = ServedClock(database.connect(read_only=True))
        writer = Writer(database, clock)
        stack.push_async_callback(writer.close)
        reader = Reader(database)
        stack.callback(reader.close)
        recounting = Reader(database, name="store-recount")
        stack.callback(recounting.close)
        shards = await Shards.open(settings.state_dir / SHARDS_FOLDER, writer, reader)
        stack.callback(shards.close)
        tokenizing = await _open_tokenizing(settings, start.chat_format)
        stack.push_async_callback(tokenizing.close)
        engine = Engine(
            settings.gateway_url,
            engine_urls=settings.engine_urls,
            api_key=gateway_key(settings.gateway_api_key_file),
            control_key=partial(_control_key, settings.gateway_control_key_file),
            silence=settings.engine_timeout,
        )
        stack.push_async_callback(engine.aclose)
        dumps, adopted = DumpFolder(folder_of(settings), owner), await Adopted.load(reader, owner)
        weights = await Weights.open(writer, max_hold=settings.sessions.max_hold)
        metrics, under_way = Metrics(), UnderWay()
        drains = Drains(
            store=writer,
            work=_Work(metrics, weights, under_way, cut=lambda: proxy.cut_calls()),
            host=start.host,
            timeout=settings.drain_timeout,
            max_hold=settings.sessions.max_hold,
            served=clock.now,
        )
        peers = Peers(
            settings,
            ever=await reader.run(extent.load),
            grown=lambda ever: _write_soon(writer, partial(extent.save, ever=ever)),
        )
        stack.push_async_callback(peers.close)
        sessions = Sessions(
            reader, cache_bytes=int(_SESSIONS_SHARE * settings.cache_bytes), rules=tokenizing.chat_format.rules
        )
        seals = Seals()
        gatherer = Gatherer(
            shards,
            reader,
            peers,
            owner,
            admin_key=lambda: first_admin_key(_admin_key_file(settings)),
            limit=settings.shard_limit,
        )
        sweeper = Sweeper(
            reader=reader,
            writer=writer,
            sessions=sessions,
            seals=seals,
            clock=clock,
            owner=owner,
            metrics=metrics,
            gather=gatherer.of_session,
            on_freed=lambda freed: proxy.follow_freed(freed),
        )
        stack.push_async_callback(sweeper.close)
        in_flight = InFlight(settings.in_flight_bytes)
        large_bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large bodies")
        stack.callback(large_bodies.shutdown, wait=False, cancel_futures=True)
        collections = Collections()
        collections.watch()
        stack.callback(collections.end)
        trimming = Trimming(freed=lambda: in_flight.released + sweeper.released, quiet=lambda: metrics.in_flight == 0)
        if settings.allocator.trim:
            await stack.enter_async_context(trimmed(trimming))
        proxy = Proxy(
            settings=settings,
            owner=owner,
            admin=admin,
            database=database,
            clock=clock,
            writer=writer,
            reader=reader,
            recounting=recounting,
            shards=shards,
            gatherer=gatherer,
            sessions=sessions,
            paths=Paths(reader, cache_bytes=int(_IDS_SHARE * settings.cache_bytes)),
            admission=Admission(
                settings.sessions.limits,
                database,
                sessions_open=(await reader.run(count_by_state))["open"],
                shard_bytes=lambda: shards.nbytes,
            ),
            tokenizing=tokenizing,
            answers=Answers(settings.model, tokenizing.chat_format.token_bytes),
            engine=engine,
            weights=weights,
            fleet_weights=FleetWeights(
                weights, ordinal=owner.ordinal, engines=EngineCommands(engine), clock=time.monotonic
            ),
            peers=peers,
            placement=Placement(peers, writer),
            dumps=dumps,
            importer=Importer(writer, reader, shards, folder=dumps, adopted=adopted),
            adopted=adopted,
            metrics=metrics,
            seals=seals,
            sweeper=sweeper,
            in_flight=in_flight,
            pace=Pace(),
            trimming=trimming,
            collections=collections,
            large_bodies=large_bodies,
            under_way=under_way,
            drains=drains,
            probing=Probing(),
            call_grammars=CallGrammars(time.monotonic),
        )
        weights.on_recovered = proxy.follow_recovery
        proxy.importer.on_changed = proxy.forget
        await proxy.importer.recover()
        stack.push_async_callback(proxy.write_last_words)
        stack.push_async_callback(proxy.retire)
        stack.push_async_callback(proxy.end_calls)
        await drains.boot(start.crash)
        stack.push_async_callback(drains.close)
        peers.begin(weights, own=proxy.as_peer)
        yield proxy


def prepare(settings: ProxySettings) -> ChatFormat:
    """All that can be done, or found to be wrong, before the store is opened; returns the loaded chat format.

    Raises BadKeyFile and ModelUnreadable.
    """
    _admin_keys(settings)
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


def _admin_keys(settings: ProxySettings) -> AdminKeys:
    """The keys of the file that is named; on loopback alone, a key made for this proxy."""
    file = _admin_key_file(settings)
    if settings.admin_key_file is None:
        if not _is_loopback(settings.host):
            raise BadKeyFile(f"listening on {settings.host} needs an admin key: set admin_key_file to a file with one")
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            make_admin_key(file)
        logger.info("the admin key is in %s", file)
    return load_admin_keys(file)


def _admin_key_file(settings: ProxySettings) -> Path:
    return settings.admin_key_file or settings.state_dir / ADMIN_KEY_FILE


def _on_one_disk(folder: Path, other: Path) -> bool:
    """`folder` need not be there yet: then it will be on the disk of the nearest folder above it."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), other)
    return there.stat().st_dev == other.stat().st_dev


def _control_key(file: Path | None) -> str | None:
    """Read at each use; None where there is none that could stand in a header, as while its Secret is made anew."""
    try:
        key = None if file is None else file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return key if key and key.isprintable() else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write_soon(writer: Writer, operation: Callable[[Transaction], object]) -> None:
    writer.submit(operation).add_done_callback(_log_failure)


def _log_failure(future: Any) -> None:
    if not future.cancelled() and future.exception() is not None:
        logger.warning("a note could not be written: %s", future.exception())
