"""Whose is it: this proxy's, or which other one's that is there to be asked.

It follows from the name or key that a call carries.
"""

import re
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Scope

from rolloutfleet.dumps.files import DumpName
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.dialects.registry import dialect_call, is_greeting
from rolloutfleet_proxy.domain import errors
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.headers import presented_key
from rolloutfleet_proxy.ids import GROUP, LEASE, SESSION, TENSOR, Owner, owner_of_key, owner_of_name
from rolloutfleet_proxy.lifecycle.adopted import Adopted

_NAMED = re.compile(r"^/(sessions|leases|shards)/([^/]+)")
_KINDS = {"sessions": SESSION, "leases": LEASE, "shards": TENSOR}
Named = Literal["session", "lease", "shard", "group", "key"]
_WORDS: dict[str, Named] = {"sessions": "session", "leases": "lease", "shards": "shard"}
_UNKNOWN = {
    "session": errors.SessionNotFound,
    "lease": errors.LeaseNotFound,
    "shard": errors.ShardNotFound,
    "group": errors.GroupNotFound,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Judges whom a name, or a key, leads to."""

    own: Owner
    peers: Peers
    adopted: Adopted
    ephemeral: bool

    def check(self, owner: Owner, *, named: Named, session: str = "") -> None:
        """Lets pass this proxy's own, and what is another's that is expected to be there.

        Raises where nobody is: StoreLost, KeptOnVolume or, with ephemeral storage, OwnerGone,
        which names the dumps that there may be of `session`: those follow from its id. Where the fleet never had such a
        proxy: what is not found, or InvalidKey for a key, by what `named` it.
        """
        own, ordinal = self.own, owner.ordinal
        if owner == own:
            return
        if ordinal == own.ordinal:
            raise errors.StoreLost(
                f"This belongs to store {owner.store_id} of proxy {ordinal}, which is lost: its store is "
                f"{own.store_id} now."
            )
        if ordinal < self.peers.replicas:
            return
        if ordinal >= self.peers.ever:
            raise _never_given(ordinal, named)
        if self.ephemeral:
            raise _owner_gone(ordinal, session)
        # A retry within seconds can't help: somebody has to scale the fleet up again.
        raise errors.KeptOnVolume(f"Proxy {ordinal} has been scaled away; this is kept on its volume until it is back.")

    def elsewhere(self, owner: Owner, *, named: Named) -> int | None:
        """The ordinal of another proxy that can be asked; None where it is this one's. Raises as `check`."""
        if owner.ordinal == self.own.ordinal:
            return None
        self.check(owner, named=named)
        return owner.ordinal

    async def elsewhere_of(self, names: Collection[str], *, group: str | None = None, param: str) -> int | None:
        """The ordinal of another proxy that has the sessions, or the group, that a body names; None where they are this
        one's, or nobody's. What was imported here is this one's, whoever made its name. Raises as `owner_of_names`, and
        as `check`.
        """
        here = await self.adopted.among(names, group=group)
        owner = owner_of_names(names, group=group, param=param, own=self.own, here=here)
        return None if owner is None else self.elsewhere(owner, named="session" if names else "group")


def owner_of_call(scope: Scope) -> Owner | None:
    """Whose call this is, by its path, or by the session key that stands for one; None where it names nobody.

    A shard whose id doesn't say it is its session's owner's, where the query names one.
    """
    if is_greeting(scope["path"]):
        return None  # Any proxy returns it, whatever became of the session.
    named = _NAMED.match(scope["path"])
    if named is not None:
        owner = owner_of_name(named[2], kind=_KINDS[named[1]])
        return _owner_of_session(scope["query_string"]) if owner is None and named[1] == "shards" else owner
    if dialect_call(scope) is not None or scope["path"].startswith("/v1/"):
        return owner_of_key(key_of(scope) or "")
    return None


def key_of(scope: Scope) -> str | None:
    """The key that a call carries, where its API has it."""
    call = dialect_call(scope)
    return presented_key(Headers(scope=scope)) if call is None else call.key


def _owner_of_session(query: bytes) -> Owner | None:
    return owner_of_name(session_in(query), kind=SESSION)


def session_in(query: bytes) -> str:
    """The session that a query names, or nothing."""
    return parse_qs(query.decode("latin-1")).get("session_id", [""])[0]


def owner_of_names(
    names: Iterable[str], *, group: str | None, param: str, own: Owner, here: Container[str] = ()
) -> Owner | None:
    """Whose sessions or group a body names; None where none of the names is of our form.

    Those in `here` were imported here and are of `own`, whatever their names say. Raises InvalidRequest where they
    belong to several proxies: each has to be asked for its own.
    """
    owners = {own if name in here else owner_of_name(name, kind=SESSION) for name in names}
    if group is not None:
        owners.add(own if group in here else owner_of_name(group, kind=GROUP))
    return _one_owner({owner for owner in owners if owner is not None}, param)


def owner_of_shards(ids: Iterable[str], own: Owner, *, param: str) -> Owner:
    """Whose shards a body names; those whose ids say nothing of their owner are this proxy's, `own`.

    Raises InvalidRequest where they belong to several proxies.
    """
    return _one_owner({owner_of_name(name, kind=TENSOR) or own for name in ids}, param) or own


def _one_owner(owners: set[Owner], param: str) -> Owner | None:
    ordinals = sorted({owner.ordinal for owner in owners})
    if len(ordinals) > 1:
        raise errors.InvalidRequest(
            f"These belong to proxies {', '.join(map(str, ordinals))}: ask each proxy for its own.", param=param
        )
    return next(iter(owners), None)


def _never_given(ordinal: int, named: Named) -> DomainError:
    if named == "key":
        return errors.InvalidKey()
    message = f"There is no such {named}: this fleet has never had a proxy {ordinal}."
    return _UNKNOWN[named](message)


def _owner_gone(ordinal: int, session: str) -> DomainError:
    names = [str(DumpName(session or "{session_id}", number)) for number in (1, None)]
    return errors.OwnerGone(
        f"Proxy {ordinal} has been scaled away, and its storage with it. What was dumped of the session is in "
        f"{names[0]}, and so on for each trajectory, and in {names[1]}.",
        details={"dumps": names} if session else None,
    )


def session_of(path: str) -> str:
    """The session that a path names, or nothing."""
    named = _NAMED.match(path)
    return named[2] if named is not None and named[1] == "sessions" else ""


def named_by(path: str) -> Named:
    """What says whose a call is."""
    named = _NAMED.match(path)
    return "key" if named is None else _WORDS[named[1]]
