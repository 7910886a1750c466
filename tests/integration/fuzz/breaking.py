"""What becomes of a right request before it is sent: other framing, or something wrong with it. Pure but for chance."""

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from tests.integration.fuzz.asking import Ask
from tests.unit.proxy.dialects.openai_chat.test_request import IN_MESSAGES, IN_TOOLS

Json = Any
HEAD_BYTES = 64 << 10
HEADERS = 1000


class Expect(Enum):
    RIGHT = auto()
    """It must be answered as the request that it was made from."""
    REFUSED = auto()
    """A 4xx; nothing may change."""
    EITHER = auto()
    """Whether it is right is for the proxy to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is sent, and what must come of it."""

    ask: Ask
    kind: str
    method: str
    pieces: Sequence[bytes]
    pause: float = 0.0
    """Seconds between the pieces."""
    expect: Expect
    statuses: frozenset[int] = frozenset()
    """Those that it may be refused with; any 4xx where empty."""
    ahead: int = 0
    """Answers of `GET /health` that come first."""
    broken: bool = False
    """What is behind it on this connection can't be known: the proxy must close it."""
    silent: bool = False
    """It may be closed without an answer."""
    short: bool = False
    """More of it was announced than is sent."""
    leaves: float | None = None
    """Seconds after which the caller goes away; then it asks the same again."""
    sent: Json = None
    """The body, for what a 2xx tells."""


@dataclass(slots=True)
class Draft:
    """A request that is about to be written."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes | None
    version: bytes = b"HTTP/1.1"
    chunked: bool = False
    lengths: tuple[bytes, ...] | None = None
    """Content-Length as it is; None: what is right."""
    trailers: bytes = b""
    extension: bytes = b""
    extra: list[bytes] = field(default_factory=list)
    """Lines of the head as they are."""

    @classmethod
    def of(cls, ask: Ask, random: Random) -> "Draft":
        query = f"?{urlencode(ask.query)}" if ask.query else ""
        headers = [(b"host", b"127.0.0.1")]
        if ask.key is not None:
            way = random.random() < 0.2
            headers.append(
                (b"x-api-key", ask.key.encode()) if way else (b"authorization", b"Bearer " + ask.key.encode())
            )
        headers += [(name.lower().encode(), value.encode()) for name, value in ask.headers.items()]
        if ask.body is not None and random.random() < 0.7:
            headers.append((b"content-type", b"application/json"))
        return cls(ask.method, ask.path + query, headers, ask.body)

    def without(self, *names: bytes) -> None:
        self.headers = [each for each in self.headers if each[0] not in names]

    def head(self) -> bytes:
        lines = [self.method.encode() + b" " + self.target.encode("latin-1") + b" " + self.version]
        lines += [name + b": " + value for name, value in self.headers]
        if self.chunked:
            lines.append(b"transfer-encoding: chunked")
        lengths = self.lengths
        if lengths is None:
            lengths = () if self.chunked or self.body is None else (b"%d" % len(self.body),)
        lines += [b"content-length: " + length for length in lengths]
        return b"\r\n".join([*lines, *self.extra, b"", b""])

    def written_body(self, random: Random) -> bytes:
        if not self.chunked:
            return self.body or b""
        chunks = [b"%x%s\r\n%s\r\n" % (len(part), self.extension, part) for part in _parts(self.body or b"", random, 5)]
        return b"".join([*chunks, b"0" + self.extension + b"\r\n", self.trailers, b"\r\n"])

    def bytes(self, random: Random) -> bytes:
        return self.head() + self.written_body(random)


def _parts(data: bytes, random: Random, most: int) -> list[bytes]:
    """The data in up to so many pieces, none of them empty."""
    cuts = sorted(random.randrange(1, len(data)) for _ in range(random.randint(0, most - 1))) if len(data) > 1 else []
    found = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [each for each in found if each]


Made = Case | None
Kind = Callable[[Ask, Random], Made]
"""Makes a case of a right request; None where it can't be."""


def _right(ask: Ask) -> Expect:
    return Expect.RIGHT if ask.sure else Expect.EITHER


def _case(ask: Ask, kind: str, random: Random, draft: Draft | None = None, **options: Any) -> Case:
    draft = draft or Draft.of(ask, random)
    given = {"expect": _right(ask), "pieces": [draft.bytes(random)], "sent": ask.json} | options
    return Case(ask=ask, kind=kind, method=draft.method, **given)


# Right requests in other framing


def plain(ask: Ask, random: Random) -> Made:
    return _case(ask, "plain", random)


def in_pieces(ask: Ask, random: Random) -> Made:
    """Split where it need not be, byte by byte where it is small."""
    whole = Draft.of(ask, random).bytes(random)
    if random.random() < 0.3 and len(whole) < 600:
        return _case(ask, "in_pieces", random, pieces=[whole[i : i + 1] for i in range(len(whole))])
    return _case(ask, "in_pieces", random, pieces=_parts(whole, random, 12), pause=random.choice([0, 0.001, 0.01]))


def slowly(ask: Ask, random: Random) -> Made:
    whole = Draft.of(ask, random).bytes(random)
    return _case(ask, "slowly", random, pieces=_parts(whole, random, 8), pause=random.uniform(0.05, 0.2))


def in_chunks(ask: Ask, random: Random) -> Made:
    """Chunked, with extensions and trailers, which never become headers."""
    if ask.body is None:
        return None
    draft = Draft.of(ask, random)
    draft.chunked = True
    if random.random() < 0.5:
        draft.extension = random.choice([b";a", b";a=b", b';a="b c"', b";a=" + b"x" * 900])
    if random.random() < 0.5:
        names = [b"authorization: Bearer nobody", b"x-api-key: nobody", b"host: other", b"idempotency-key: t"]
        draft.trailers = random.choice(names) + b"\r\n" + b"x-more: y\r\n" * random.randint(0, 20)
    return _case(ask, "in_chunks", random, draft)


def pipelined(ask: Ask, random: Random) -> Made:
    ahead = random.randint(1, 6)
    before = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * ahead
    return _case(ask, "pipelined", random, pieces=[before + Draft.of(ask, random).bytes(random)], ahead=ahead)


def continued(ask: Ask, random: Random) -> Made:
    if ask.body is None:
        return None
    draft = Draft.of(ask, random)
    draft.headers.append((b"expect", b"100-continue"))
    return _case(ask, "continued", random, draft)


def closing(ask: Ask, random: Random) -> Made:
    """Says that it is the last one, or is of a protocol in which each one is."""
    draft = Draft.of(ask, random)
    if random.random() < 0.5:
        draft.version = b"HTTP/1.0"
    else:
        draft.headers.append((b"connection", b"close"))
    return _case(ask, "closing", random, draft, broken=True)


def dressed(ask: Ask, random: Random) -> Made:
    """With headers that mean nothing here."""
    draft = Draft.of(ask, random)
    odd = [b"upgrade: h2c\r\nconnection: upgrade", b"cookie: a=b", b"range: bytes=0-1", b"x-forwarded-for: ::1"]
    odd += [b"x-empty:", b"X-Odd: \xff\xfe", b"te: trailers", b"accept-encoding: br, gzip"]
    odd += [b"x-request-id: " + b"r" * 400, b"traceparent: nonsense", b"via: 1.1 x"]
    draft.extra = random.sample(odd, random.randint(1, 4))
    return _case(ask, "dressed", random, draft)


def lost(ask: Ask, random: Random) -> Made:
    """The caller goes away before the answer, and asks again under its Idempotency-Key."""
    if not ask.retried:
        return None
    return _case(ask, "lost", random, leaves=random.choice([0.0, 0.002, 0.01, 0.05]))


# Who asks, and for what


def key(ask: Ask, random: Random) -> Made:
    if ask.key is None:
        return None
    draft = Draft.of(ask, random)
    draft.without(b"authorization", b"x-api-key")
    own = ask.key.encode()
    made = b"rf-%d-%s-%s" % (random.choice([0, 1, 7, 999999]), b"0" * 12, b"A" * 43)
    wrong = [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer nonsense",
        b"Basic " + own,
        b"Bearer " + own + b"x",
        b"Bearer " + made,
    ]
    wrong += [b"Bearer caf\xe9", b"bearer" + own, b"Bearer " + b"k" * 5000, own]
    chosen = random.choice(wrong)
    if chosen:
        draft.headers.append((b"authorization", chosen))
    gone = 400 if "/v1/responses" in ask.route else 410
    return _case(ask, "key", random, draft, expect=Expect.REFUSED, statuses=frozenset({401, 403, gone}))


def other_key(ask: Ask, random: Random, *, keys: Sequence[str]) -> Made:
    """A key that opens something else."""
    others = [each for each in keys if each != ask.key]
    if ask.key is None or ask.by_key_alone or not others:
        return None
    draft = Draft.of(ask, random)
    draft.without(b"authorization", b"x-api-key")
    draft.headers.append((b"authorization", b"Bearer " + random.choice(others).encode()))
    return _case(ask, "other_key", random, draft, expect=Expect.REFUSED, statuses=frozenset({401, 403}))


def name(ask: Ask, random: Random, *, stores: Sequence[str]) -> Made:
    """Ids of nobody, of other ordinals and stores, and what is no id."""
    if not ask.names or ask.route in ("PUT /shards/{id}", "GET /v1/models/{id}"):
        return None
    own = ask.names[0]
    kind = own[0] if own[0] in "sgl" else "s"
    rest = "0" * 16
    odd = [f"{kind}{ordinal}-{store}-{rest}" for ordinal in (0, 1) for store in stores]
    odd += [f"{kind}{ordinal}-{stores[0]}-{rest}" for ordinal in (2, 17, 999999, 10**30)]
    odd += [f"{kind}0-{'0' * 12}-{rest}", own + "0", own[:-1], own.upper(), "nobody", "x" * 500, "x" * 9000, "0"]
    odd += ["%00", "%FF", "%C3%28", "..%2Faudit", "%2e%2e", quote("é"), quote("\u202e"), "a%20b", "-1", "null", "{}"]
    chosen = random.choice(odd)
    draft = Draft.of(ask, random)
    draft.target = draft.target.replace(own, chosen, 1)
    expect = Expect.EITHER if ask.route in ("GET /shards/{id}", "GET /dumps/{id}") else Expect.REFUSED
    return _case(ask, "name", random, draft, expect=expect, statuses=frozenset({400, 401, 403, 404, 410, 405}))


def query(ask: Ask, random: Random) -> Made:
    if not ask.queries:
        return None
    chosen = random.choice(sorted(ask.queries))
    value = random.choice(ask.queries[chosen])
    draft = Draft.of(ask, random)
    given = {**ask.query, chosen: value}
    draft.target = f"{ask.path}?{urlencode(given)}"
    expect = Expect.EITHER if value == "" else Expect.REFUSED
    return _case(ask, "query", random, draft, expect=expect)


NO_METHODS = ("FLY", "get", "G(T", "GETGET")


def method(ask: Ask, random: Random) -> Made:
    draft = Draft.of(ask, random)
    draft.method = random.choice(["PATCH", "OPTIONS", "TRACE", "HEAD", "PROPFIND", *NO_METHODS])
    draft.body = None if draft.method == "HEAD" else draft.body
    if draft.method in NO_METHODS:
        return _case(ask, "method", random, draft, expect=Expect.REFUSED, broken=True)
    return _case(ask, "method", random, draft, expect=Expect.REFUSED, statuses=frozenset({401, 404, 405}))


def path(ask: Ask, random: Random) -> Made:
    draft = Draft.of(ask, random)
    odd = [
        f"{ask.path}/",
        f"//{ask.path}",
        f"{ask.path}/nothing",
        "/v2/chat/completions",
        "/",
        "/%2e%2e/%2e%2e/etc/passwd",
    ]
    draft.target = random.choice([*odd, f"{ask.path}%00", f"{ask.path};a=b", f"{ask.path}%0d%0ax: y"])
    # Ids of models may hold slashes, and any name is one.
    expect = Expect.EITHER if ask.names or "/v1/models" in ask.route else Expect.REFUSED
    if expect is Expect.EITHER and ask.method != "GET":
        return None
    return _case(ask, "path", random, draft, expect=expect)


# Bodies


def _with_body(ask: Ask, kind: str, random: Random, body: bytes, **options: Any) -> Case:
    draft = Draft.of(ask, random)
    draft.body = body
    draft.chunked = random.random() < 0.2
    return _case(ask, kind, random, draft, **({"expect": Expect.REFUSED} | options))


def field_of(ask: Ask, random: Random) -> Made:
    """A field that is unknown, or of a wrong type or range."""
    if ask.body is None or ask.takes_tensors:
        return None
    body = ask.json
    expect = Expect.REFUSED
    if ask.wrong and random.random() < 0.8:
        chosen = random.choice(sorted(ask.wrong))
        body[chosen] = random.choice(ask.wrong[chosen])
        if ask.path.endswith("/chat/completions") and random.random() < 0.3:
            name, wrong = random.choice([("messages", IN_MESSAGES), ("tools", IN_TOOLS)])
            body = ask.json | {name: [random.choice(wrong)[0]]}
    else:
        body[random.choice(["more", "\ud800", "é", "x" * 3000])] = random.choice([1, None, {}])
        # An agent's call may have what has no effect; it is named in the answer.
        expect = Expect.EITHER if {"messages", "input"} & body.keys() else expect
    return _with_body(ask, "field", random, json.dumps(body).encode(), expect=expect, sent=body)


ODD_VALUES: tuple[Json, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**70), 0.1, 1e300, -1e-300, 10**400),
    *("", " ", "\0", "\ud800", "é" * 40, "x" * 3000, "NaN", [], {}, [[]], {"": None}, [None] * 50, {"a": {"b": [{}]}}),
)


def mutant(ask: Ask, random: Random) -> Made:
    """One value of its body is another, whatever that means."""
    if ask.body is None or ask.takes_tensors or ask.fleetwide:
        return None
    body = ask.json
    places = _places(body)
    if not places:
        return None
    body = _with(body, random.choice(places), random.choice(ODD_VALUES))
    return _with_body(ask, "mutant", random, json.dumps(body).encode(), expect=Expect.EITHER, sent=body)


def _places(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, one in inner for place in ((*path, name), *_places(one, (*path, name)))]


def _with(value: Json, path: tuple[Any, ...], new: Json) -> Json:
    name, *rest = path
    changed = _with(value[name], tuple(rest), new) if rest else new
    if isinstance(value, dict):
        return {**value, name: changed}
    return [changed if index == name else one for index, one in enumerate(value)]


def nonsense(ask: Ask, random: Random) -> Made:
    if ask.body is None:
        return None
    texts = [b"{", b"null", b"[]", b"1", b'"x"', b"{}{}", b"\x00", b"NaN", b"{'a': 1}", b'{"a": 1,}', b"\xff\xfe{\x00"]
    text = random.choice([*texts, random.randbytes(random.randint(1, 200)), b"9" * 5000, b'{"a": 1e999999}'])
    expect = Expect.EITHER if text == b"null" else Expect.REFUSED
    return _with_body(ask, "nonsense", random, text, expect=expect, sent={})


def torn(ask: Ask, random: Random) -> Made:
    """Its end is missing, and what is said of its length agrees."""
    if not ask.body:
        return None
    return _with_body(ask, "torn", random, ask.body[: random.randrange(1, len(ask.body))])


def utf8(ask: Ask, random: Random) -> Made:
    if ask.body is None or ask.takes_tensors:
        return None
    at = random.randrange(len(ask.body) + 1)
    odd = random.choice([b"\xff", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80"])
    body = ask.body[:at] + odd + ask.body[at:]
    try:
        sent = json.loads(body.decode(errors="replace"))
    except ValueError:
        return _with_body(ask, "utf8", random, body)
    # In the text of a conversation it is mended.
    expect = Expect.EITHER if {"messages", "input"} & sent.keys() else Expect.REFUSED
    return _with_body(ask, "utf8", random, body, expect=expect, sent=sent)


def deep(ask: Ask, random: Random) -> Made:
    if ask.body is None or ask.takes_tensors:
        return None
    depth = random.choice([100, 1_000, 20_000, 90_000])
    inner = random.choice([b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * (depth // 5)])
    text = random.choice([inner, b'{"more": ' + inner + b"}"])
    return _with_body(ask, "deep", random, text)


def huge(ask: Ask, random: Random, *, limit: int) -> Made:
    """More than the limit; by its length nothing of it is read, in chunks what fits."""
    if ask.body is None:
        return None
    draft = Draft.of(ask, random)
    draft.body = b'{"more": "' + b"x" * limit + b'"}'
    draft.chunked = random.random() < 0.5
    whole = draft.bytes(random)
    pieces = [whole[at : at + 65536] for at in range(0, len(whole), 65536)]
    return _case(ask, "huge", random, draft, pieces=pieces, expect=Expect.REFUSED, statuses=frozenset({400, 413}))


def compressed(ask: Ask, random: Random) -> Made:
    if ask.body is None:
        return None
    draft = Draft.of(ask, random)
    plain = ask.body if random.random() < 0.7 else b"\0" * 5_000_000
    deflated = random.random() < 0.5
    draft.body = zlib.compress(plain) if deflated else gzip.compress(plain)
    draft.headers.append((b"content-encoding", b"deflate" if deflated else b"gzip"))
    expect = Expect.EITHER if plain == ask.body and not ask.goes_to_disk else Expect.REFUSED
    return _case(ask, "compressed", random, draft, expect=expect)


def lies(ask: Ask, random: Random) -> Made:
    """safetensors that say other things of themselves than are so."""
    if not ask.takes_tensors:
        return None

    def file(header: Json, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return (len(text) if length is None else length).to_bytes(8, "little") + text + data

    right = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    headers: list[Json] = [{}, [], None, {"x": 1}, {"x": right, "y": right}, {"__metadata__": {}}, b"{", b""]
    bodies = [
        *map(file, headers),
        *(file({"x": right | {name: value}}) for name, value in _LIES),
        *(file({"x": right}, length=length) for length in (0, 1, 7, 2**20 + 1, 2**40, 2**63, 2**64 - 1)),
        *(file({"x": right}, data=b"\0" * size) for size in (0, 7, 9, 4096)),
        *(b"", b"\0", b"\0" * 7, b"\xff" * 64, file(b'{"x": ' + b"[" * 50_000)),
    ]
    return _with_body(ask, "lies", random, random.choice(bodies))


_LIES: tuple[tuple[str, Json], ...] = (
    *(("dtype", value) for value in ("F33", "", None, 1, "F4", ["F32"], "x" * 5000)),
    *(
        ("shape", value)
        for value in ([3], [2, 2], [-2], [-2, -1], [2.0], ["2"], 2, None, [2**62, 4], [2**64], [True, 2])
    ),
    *(
        ("data_offsets", value)
        for value in ([0, 7], [1, 9], [8, 0], [0], [0, 8, 8], [-8, 0], ["0", "8"], None, [0, 2**63])
    ),
)


# Heads and lengths


def cut_short(ask: Ask, random: Random) -> Made:
    """The body ends before its length, and so does what the caller sends."""
    if not ask.body:
        return None
    draft = Draft.of(ask, random)
    body = ask.body[: random.randrange(len(ask.body))]
    draft.lengths = (b"%d" % len(ask.body),)
    return _case(
        ask, "cut_short", random, draft, pieces=[draft.head() + body], expect=Expect.REFUSED, silent=True, short=True
    )


def long_head(ask: Ask, random: Random) -> Made:
    draft = Draft.of(ask, random)
    match random.randrange(3):
        case 0:
            draft.extra = [b"x-long: " + b"y" * (HEAD_BYTES * random.randint(1, 8))]
        case 1:
            draft.extra = [b"a:"] * (HEADERS + random.randint(1, 5000))
        case _:
            draft.target += ("&" if "?" in draft.target else "?") + "x" * HEAD_BYTES
    return _case(ask, "long_head", random, draft, expect=Expect.REFUSED, statuses=frozenset({431}), broken=True)


def odd_head(ask: Ask, random: Random) -> Made:
    """Lines that are no HTTP."""
    draft = Draft.of(ask, random)
    lines = [
        b"no colon",
        b"x y: 1",
        b": nothing",
        b"x\x00: 1",
        b"x: a\x00b",
        b"x: a\rb",
        b"(x): 1",
        b"x : 1",
        b"\xff: 1",
    ]
    if random.random() < 0.7:
        draft.extra = [random.choice(lines)]
    else:
        draft.version = random.choice(
            [b"HTTP/9.9", b"HTTP/1", b"HTTP/1.1 x", b"HTTPS/1.1", b"http/1.1", b"x", b"HTTP/-1.1"]
        )
    return _case(ask, "odd_head", random, draft, expect=Expect.REFUSED, statuses=frozenset({400}), broken=True)


def no_http(ask: Ask, random: Random) -> Made:
    texts = [b"\x16\x03\x01\x02\x00 hello\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET\r\n\r\n", b"\0" * 50]
    text = random.choice([*texts, b"\xff" + random.randbytes(random.randint(1, 300)) + b"\r\n\r\n", b"quit\r\n\r\n"])
    return _case(ask, "no_http", random, pieces=[text], expect=Expect.REFUSED, statuses=frozenset({400}), broken=True)


def lengths(ask: Ask, random: Random) -> Made:
    """Duplicate and contradictory lengths, and lengths that are none."""
    if not ask.body:
        return None
    draft = Draft.of(ask, random)
    size = len(ask.body)
    odd: list[tuple[bytes, ...]] = [(b"%d" % size, b"%d" % (size + 1)), (b"%d" % size, b"0"), (b"-1",), (b"1e3",)]
    odd += [(b"%d, %d" % (size, size + 1),), (b"+%d" % size,), (b"0x%x" % size,), (b"9" * 40,), (b"x",)]
    draft.lengths = random.choice(odd)
    statuses = frozenset({400, 413})
    return _case(ask, "lengths", random, draft, expect=Expect.REFUSED, statuses=statuses, broken=True)


def length_and_chunks(ask: Ask, random: Random) -> Made:
    """Both ways at once to say how long a body is: either is refused, or the chunks count and the connection ends."""
    if ask.body is None:
        return None
    draft = Draft.of(ask, random)
    draft.chunked = True
    draft.lengths = (b"%d" % random.choice([0, 3, len(ask.body), 10**6]),)
    return _case(ask, "length_and_chunks", random, draft, expect=Expect.EITHER, broken=True)


def bad_chunks(ask: Ask, random: Random) -> Made:
    if not ask.body:
        return None
    draft = Draft.of(ask, random)
    draft.chunked = True
    size = b"%x" % len(ask.body)
    odd = [b"zz\r\n", b"-1\r\n", b"f" * 20 + b"\r\n", b"\r\n", size + b"\r\n" + ask.body + b"xx", b"0x5\r\nhello\r\n"]
    odd += [b"5;" + b"y" * HEAD_BYTES * 2, size + b"\r\n" + ask.body + b"\r\n0\r\nx: " + b"y" * HEAD_BYTES * 2]
    body = random.choice([*odd, b"2\r\nab\r\n0\r\n" + b"a:\r\n" * HEADERS * 2 + b"\r\n"])
    statuses = frozenset({400, 401, 403, 404, 408, 409, 410, 413, 431})
    return _case(
        ask,
        "bad_chunks",
        random,
        draft,
        pieces=[draft.head() + body],
        expect=Expect.REFUSED,
        statuses=statuses,
        broken=True,
        silent=True,
    )


def trailing_key(ask: Ask, random: Random) -> Made:
    """A key that comes as a trailer is none."""
    if ask.body is None or ask.key is None:
        return None
    draft = Draft.of(ask, random)
    draft.without(b"authorization", b"x-api-key")
    draft.chunked, draft.trailers = True, b"authorization: Bearer " + ask.key.encode() + b"\r\n"
    return _case(ask, "trailing_key", random, draft, expect=Expect.REFUSED, statuses=frozenset({401}))


# Connections that are slow for ever


def endless_head(ask: Ask, random: Random) -> Made:
    whole = Draft.of(ask, random).head()
    pieces = [whole[: random.randrange(1, len(whole) - 2)]]
    statuses = frozenset({408})
    return _case(ask, "endless_head", random, pieces=pieces, expect=Expect.REFUSED, statuses=statuses, broken=True)


def silent_body(ask: Ask, random: Random) -> Made:
    if not ask.body:
        return None
    draft = Draft.of(ask, random)
    draft.lengths = (b"%d" % (len(ask.body) + 1),)
    return _case(
        ask,
        "silent_body",
        random,
        draft,
        pieces=[draft.head() + ask.body[: random.randrange(len(ask.body))]],
        expect=Expect.REFUSED,
        short=True,
    )


RIGHT: tuple[tuple[Kind, float], ...] = (
    (plain, 12),
    (in_pieces, 2),
    (slowly, 0.3),
    (in_chunks, 3),
    (pipelined, 2),
    (continued, 1),
    (closing, 1),
    (dressed, 2),
    (lost, 4),
)
WRONG: tuple[tuple[Kind, float], ...] = (
    (key, 3),
    (query, 4),
    (method, 2),
    (path, 2),
    (field_of, 6),
    (mutant, 6),
    (nonsense, 3),
    (torn, 2),
    (utf8, 2),
    (deep, 1),
    (compressed, 1),
    (lies, 8),
    (cut_short, 2),
    (long_head, 0.6),
    (odd_head, 2),
    (no_http, 1),
    (lengths, 2),
    (length_and_chunks, 1),
    (bad_chunks, 2),
    (trailing_key, 1),
)
ENDLESS: tuple[Kind, ...] = (endless_head, silent_body)
