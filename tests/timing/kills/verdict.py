"""What a run showed: the journals against the fleet at its end."""

from typing import Any

from tests.integration.proxy import judge
from tests.timing.kills.journal import Journal
from tests.timing.kills.targets import Targets

Json = Any


def check_the_end(targets: Targets, journal: Journal) -> int:
    """Compare the journal with the fleet, where all that was made is exported and acknowledged; the audits compared."""
    journal.check_every_answer_was_exported_once()
    for each in targets.proxies:
        proxy = each.proxy
        audit = proxy.audit()
        turns, sessions = audit["turns"], audit["sessions"]
        started = sum(talk.ordinal == proxy.ordinal for talk in journal.talks.values())
        told = {
            "balanced": (audit["balanced"], True),
            "turns live": (turns["live"], 0),
            "turns leased": (turns["leased"], 0),
            "turns acknowledged": (turns["acknowledged"], journal.turns_acknowledged(proxy.ordinal)),
            "turns imported": (turns["imported"], turns["dumped"]),
            "sessions created": (sessions["created"], started),
            "calls in flight": (proxy.stats()["in_flight"], 0),
        }
        for name, (is_now, should_be) in told.items():
            if is_now != should_be:
                journal.contradict(f"proxy {proxy.ordinal}, {name}: {is_now}, and should be {should_be}; {audit}")
        if "Traceback" in proxy.log.read_text(errors="replace"):
            journal.contradict(f"there is a traceback in the log of proxy {proxy.ordinal}")
        try:
            judge.assert_sound(proxy)
        except AssertionError as error:
            journal.contradict(f"the store of proxy {proxy.ordinal} is not sound: {error}")
    return len(targets.proxies)
