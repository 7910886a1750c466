"""The parent's edges: it opens sockets, starts and reaps workers, hears signals, and does what `decisions` says."""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from rolloutfleet_proxy.process.channel import Channel
from rolloutfleet_proxy.process.decisions import Action, Decisions, Exit, Kill, Listen, Log, Say, Spawn, Tell
from rolloutfleet_proxy.process.oom_kills import count as count_oom_kills
from rolloutfleet_proxy.process.parent_log import Lines

BACKLOG = 4096
"""Connections that wait in the kernel while no worker accepts; `net.core.somaxconn` may allow fewer."""
WORKER = "rolloutfleet_proxy.worker"
NOT_FOR_WORKERS = (signal.SIGINT, signal.SIGHUP)
"""Blocked in a worker until it has loaded and ignores them: a terminal sends Ctrl-C to all of its processes."""
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class _Process(NamedTuple):
    pid: int
    channel: Channel


class Parent:
    """One proxy's parent process. `run` returns the exit status."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        self._decisions = Decisions()
        self._processes: dict[int, _Process] = {}
        self._listening: list[socket.socket] = []
        self._status: int | None = None
        self._lines = Lines()
        self._oom_kills = count_oom_kills()
        self._selector = selectors.DefaultSelector()
        self._wake, wake = socket.socketpair()
        self._wake.setblocking(False)
        wake.setblocking(False)
        self._woken = wake
        self._selector.register(self._wake, selectors.EVENT_READ)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in _HEARD:
            signal.signal(number, lambda *_: None)

    def run(self) -> int:
        self._act(self._decisions.spawn())
        while self._status is None or self._processes:
            due = self._decisions.due
            self._selector.select(None if due is None else max(0.0, due - time.monotonic()))
            for number in list(self._processes):
                self._listen_to(number)
            for heard in self._signals():
                self._hear(heard)
            self._reap()
            if due is not None and time.monotonic() >= due:
                self._act(self._decisions.tick(time.monotonic()))
        return self._status

    def _signals(self) -> bytes:
        try:
            return self._wake.recv(4096)
        except BlockingIOError:
            return b""

    def _hear(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._act(self._decisions.told_to_stop(number, time.monotonic()))
        elif number == signal.SIGHUP and self._decisions.owner is not None:
            self._signal(self._decisions.owner.number, signal.SIGHUP)

    def _listen_to(self, number: int) -> None:
        process = self._processes[number]
        messages, descriptors = process.channel.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        for message in messages:
            self._act(self._decisions.said(number, message, time.monotonic()))
        if process.channel.closed and process.channel.fileno() in self._selector.get_map():
            self._selector.unregister(process.channel)

    def _reap(self) -> None:
        """Collect every child that ended. As the first process of a container that may be anybody's."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = next((number for number, process in self._processes.items() if process.pid == pid), None)
            if number is None:
                continue
            self._listen_to(number)  # what it said last comes before its end
            process = self._processes.pop(number)
            if process.channel.fileno() in self._selector.get_map():
                self._selector.unregister(process.channel)
            process.channel.close()
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            oom_kills, self._oom_kills = self._oom_kills, count_oom_kills()
            how = os.waitstatus_to_exitcode(status), self._oom_kills > oom_kills
            self._act(self._decisions.ended(number, *how, peak, time.monotonic()))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if self._status is not None:
                return
            match action:
                case Spawn(number):
                    self._spawn(number)
                case Tell(number, message):
                    if number in self._processes:
                        self._processes[number].channel.send(message)
                case Listen(number, host, port):
                    self._hand_over(number, host, port)
                case Kill(number):
                    self._signal(number, signal.SIGKILL)
                case Log(form):
                    self._lines = Lines(**form)
                case Say(text, level):
                    self._lines.say(text, level)
                case Exit(status):
                    self._status = status
                    for number in list(self._processes):
                        self._signal(number, signal.SIGKILL)

    def _spawn(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        command = [sys.executable, "-m", WORKER, str(theirs.fileno()), *self._arguments]
        pid = os.posix_spawn(sys.executable, command, os.environ, setsigmask=NOT_FOR_WORKERS)
        theirs.close()
        ours.setblocking(False)
        self._processes[number] = _Process(pid, Channel(ours))
        self._selector.register(self._processes[number].channel, selectors.EVENT_READ)

    def _signal(self, number: int, what: int) -> None:
        if number in self._processes:
            os.kill(self._processes[number].pid, what)  # not reaped yet, so the number is still its own

    def _hand_over(self, number: int, host: str, port: int) -> None:
        channel = self._processes[number].channel
        try:
            self._listening = self._listening or listen(host, port)
        except OSError as error:
            channel.send({"refused": f"can't listen on {host}:{port}: {error.strerror or error}"})
            return
        channel.send({"listening": True}, tuple(each.fileno() for each in self._listening))


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of a host. Raises OSError."""
    # Given bytes, Python leaves out its tables for international names, which take a megabyte.
    found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = []
    with contextlib.ExitStack() as opened:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = opened.enter_context(socket.socket(family, kind, protocol))
            sockets.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
            each.listen(BACKLOG)
            each.setblocking(False)
        opened.pop_all()
    return sockets
