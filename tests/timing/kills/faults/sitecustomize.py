"""Faults that are planted in a proxy to show that the killer finds them. The proxy itself has no part of them.

Python imports a module of this name by itself, where its folder is in PYTHONPATH; ROLLOUTFLEET_PLANTED_FAULT then says
which fault a proxy's worker gets. Other processes are left as they are.
"""

import os
import sys

ANSWER_BEFORE_COMMIT = "answer-before-commit"
FORGOTTEN_ACK = "forgotten-ack"
FORGOTTEN_START_KEY = "forgotten-start-key"


def plant(fault: str) -> None:
    """Have this process, which is to become a worker, make that mistake from now on."""
    {
        ANSWER_BEFORE_COMMIT: _answer_before_commit,
        FORGOTTEN_ACK: _forget_acks,
        FORGOTTEN_START_KEY: _forget_start_keys,
    }[fault]()


def _answer_before_commit() -> None:
    """Whoever waits for the store goes on as soon as the rows are written, though they are not committed yet."""
    from rolloutfleet_proxy.store import writer

    run_one = writer.Writer._run_one

    def and_deliver(self, job, transaction, counts, **given):  # type: ignore[no-untyped-def]
        done = run_one(self, job, transaction, counts, **given)
        self._loop.call_soon_threadsafe(writer._deliver, [job])
        return done

    writer.Writer._run_one = and_deliver  # type: ignore[method-assign]


def _forget_acks() -> None:
    """An acknowledgement is answered as it should be, and what it changed is taken back."""
    from rolloutfleet_proxy.store import leases

    acknowledge = leases.acknowledge

    def and_take_back(transaction, lease, trajectory_ids=None):  # type: ignore[no-untyped-def]
        transaction.execute("SAVEPOINT forgotten")
        done = acknowledge(transaction, lease, trajectory_ids)
        transaction.execute("ROLLBACK TO forgotten")
        transaction.execute("RELEASE forgotten")
        transaction.counts.clear()
        return done

    leases.acknowledge = and_take_back


def _forget_start_keys() -> None:
    """Sessions are started, and their Idempotency-Key is not kept."""
    from rolloutfleet_proxy.services import sessions

    sessions.remember = lambda transaction, call, answer: None  # type: ignore[attr-defined]


if "rolloutfleet_proxy.worker" in sys.orig_argv and "ROLLOUTFLEET_PLANTED_FAULT" in os.environ:
    plant(os.environ["ROLLOUTFLEET_PLANTED_FAULT"])
