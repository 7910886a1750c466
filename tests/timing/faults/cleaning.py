"""The faults in what reclaims: sessions that nobody uses, and the room that they leave."""

from tests.timing.faults.fault import PROXY, Fault, Promise

SWEEPING = ("test_sweeping.py",)
RECLAIMED = ("test_reclaimed_meanwhile.py",)

CLEANING = [
    Fault(
        "what-a-trainer-says-during-a-sweep-is-in-no-dump",
        Promise.CLEANUP,
        PROXY,
        "(SELECT coalesce(max(id), 0) FROM annotations",
        "(SELECT 0 * count(*) FROM annotations",
        SWEEPING,
    ),
    Fault(
        "annotations-outlive-their-session",
        Promise.CLEANUP,
        PROXY,
        '    ("annotations", "turn DESC, name DESC", "length(content)"),\n',
        "",
        ("store/test_annotations.py",),
    ),
    Fault(
        "what-is-leased-is-reclaimed",
        Promise.CLEANUP,
        PROXY,
        "if any(held.state in _IN_USE for member",
        "if any(held.state is None for member",
        SWEEPING,
    ),
    Fault(
        "a-session-with-a-call-in-flight-is-stale",
        Promise.CLEANUP,
        PROXY,
        "return None if any(busy(member.name) for member in unended) else Due(",
        "return Due(",
        SWEEPING,
    ),
    Fault(
        "one-stale-member-is-enough",
        Promise.CLEANUP,
        PROXY,
        "if not all(is_late(",
        "if not any(is_late(",
        SWEEPING,
    ),
    Fault(
        "a-reclaimed-session-is-said-to-be-closed",
        Promise.CLEANUP,
        PROXY,
        "return gone(found) if isinstance(found, Gone) else ended(found)",
        "return ended(session)",
        RECLAIMED,
    ),
    Fault(
        "a-call-goes-on-with-a-session-that-was-reclaimed",
        Promise.CLEANUP,
        PROXY,
        "while session.name in self.seals or not self.registry.holds(session):",
        "while session.name in self.seals:",
        RECLAIMED,
    ),
    Fault(
        "the-last-piece-of-the-reserve-is-owed-for-ever",
        Promise.CLEANUP,
        PROXY,
        "while more >= _STEP or 0 < more == self.owed:",
        "while more >= _STEP:",
        ("test_reserve.py::test_its_last_piece_is_taken_however_small",),
    ),
]
