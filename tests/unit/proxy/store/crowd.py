"""A store from which a crowd has gone."""

from rolloutfleet_proxy.store.database import Database, store_bytes
from rolloutfleet_proxy.store.writer import Writer

MEGABYTES = 24


async def after_a_crowd(database: Database, writer: Writer) -> int:
    """Bytes of the store's files before it came."""
    await writer.run(lambda t: t.execute("CREATE TABLE crowd (id INTEGER PRIMARY KEY, body BLOB)"))
    small = store_bytes(database.folder)
    for _ in range(MEGABYTES):
        await writer.run(
            lambda t: t.executemany("INSERT INTO crowd (body) VALUES (?)", ((bytes(20_000),) for _ in range(50)))
        )
    await writer.run(lambda t: t.execute("DELETE FROM crowd WHERE id > 5"))
    assert store_bytes(database.folder) > MEGABYTES * 1_000_000
    return small
