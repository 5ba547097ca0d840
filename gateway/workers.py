"""Several receiver processes on the same sockets: `server.workers`.

This process binds, owns the embedded store, starts the workers and watches them; it takes no request itself. Each worker
is a whole `gateway serve`: leases and locks in the store keep what they share apart. The first has the admin side. A
worker that ends is started again; when that does not help, all end, so that the supervisor above starts us anew. One
that finds the configuration bad by now, or naming another store, is started again later: those that read it while it was
good go on. Each says on its standard output that it serves, again and again; one that falls silent hangs, and is killed.
The order of the end: workers drain, then the store stops.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path

import uvloop

from gateway import connections, hangup, log, server
from gateway.configuration import Configuration, load_configuration
from gateway.embedded import Embedded
from gateway.errors import ConfigError, Unavailable
from gateway.settings import Settings

PR_SET_PDEATHSIG = 1  # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
RESTARTS, WITHIN_S = 5, 60.0
BACKOFF_S = 0.5
BAD = 2  # the exit code of what refuses its configuration
OTHER = 4  # and of a worker whose configuration names another store or App than the workers run on
UNSTARTED = -1000  # the system had no process to give
REFUSED_S = 5.0  # a configuration is mended by a person: looked at so often
BEAT_S = 2.0  # a worker says so often that it serves
SILENT_S = 15.0  # one that says nothing twice as long hangs: longer than anything keeps a loop that still turns
DRAIN_S = 40.0  # above what a worker takes at most: requests 20, dispatches 15
# What the workers run on, told to each by its environment: only our user can read that.
STARTED = "GATEWAY_WORKERS_STARTED"


def run(config: Path, role: str, admin_bind: str | None) -> int:
    """Serve with as many processes as are configured; return the exit code."""
    configuration = load_configuration(config)
    count = configuration.settings.server.workers
    if count == 1 or role == "dispatch":
        return server.run(config, role, admin_bind)
    binds = {
        "admin": admin_bind or configuration.settings.server.admin_bind,
        "public": configuration.settings.server.bind,
    }
    sockets: dict[str, socket.socket] = {}
    try:
        for name, bind in binds.items():
            sockets[name] = server.listen(bind)
    except server.PortTaken as error:
        log.event("port-taken", logging.ERROR, bind=str(error))
        return 3
    return asyncio.run(Supervisor(configuration, role, sockets, binds, count).run())


def run_worker(config: Path, role: str, number: int, parent: int, count: int, sockets: dict[str, int]) -> int:
    """Serve as one of `count` on inherited sockets. Ends with its parent, whatever ended that."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked to be told
        return 3
    configuration = load_configuration(config)
    if _shared(configuration.settings) != os.environ[STARTED]:
        fix = "restart the gateway, or take the change of [store] or [github] back"
        log.event("start-refused", logging.ERROR, reason="needs-restart", file=str(config), fix=fix)
        return OTHER
    taken = {name: socket.socket(fileno=number_) for name, number_ in sockets.items()}
    for one in taken.values():
        one.setblocking(False)
    os.set_blocking(1, False)  # `_say_serving` must not wait for a supervisor that does not read
    binds = {"worker": str(number)}
    connections.install()
    return uvloop.run(server.serve(configuration, role, taken, binds, count, _say_serving))


def _say_serving() -> None:
    with contextlib.suppress(OSError):  # who would read it does not, or is gone, which ends us anyway
        os.write(1, b"1")
    asyncio.get_running_loop().call_later(BEAT_S, _say_serving)


def _shared(settings: Settings) -> str:
    """What all workers must have in common: of two stores, each would take a delivery for new that the other knows."""
    parts = (settings.store.model_dump_json(), settings.github.model_dump_json())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Supervisor:
    """Starts and watches the workers."""

    def __init__(
        self,
        configuration: Configuration,
        role: str,
        sockets: dict[str, socket.socket],
        binds: dict[str, str],
        count: int,
    ) -> None:
        self._configuration, self._role, self._sockets, self._binds = configuration, role, sockets, binds
        self._count = count
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._begun: set[int] = set()  # workers that served once
        self._stop = asyncio.Event()
        self._code = 0
        self._refused: dict[int, int] = {}  # the codes of workers that have not served since they refused to

    async def run(self) -> int:
        """Run until told to stop, or until a worker cannot be kept alive."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        settings = self._configuration.settings.store
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(hangup.taken_by(self._reload))
                if settings.embedded is not None:
                    folder = self._configuration.file.parent.absolute() / settings.embedded
                    try:
                        await stack.enter_async_context(Embedded(folder))
                    except ConfigError as error:
                        raise error.at(str(self._configuration.file)) from None
                log.event("workers", role=self._role, **self._binds, workers=self._count)
                await asyncio.gather(*(self._keep(number) for number in range(self._count)))
        except Unavailable as error:
            log.event("store-unavailable", logging.ERROR, reason=error.reason)
            return 3
        log.event("stopped")
        return self._code

    async def _keep(self, number: int) -> None:
        """Start one worker, again whenever it ends, until all are to end; then drain it."""
        ends: deque[float] = deque(maxlen=RESTARTS)
        first = True
        while not self._stop.is_set():
            code = await self._live(number)
            if code is None:
                return
            log.event("worker-ended", logging.ERROR, worker=number, code=code)
            if self._give_up(number, code, ends, first=first):
                return
            first = False
            lately = sum(time.monotonic() - at < WITHIN_S for at in ends)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFUSED_S if number in self._refused else BACKOFF_S * 2 ** min(lately, 4)):
                    await self._stop.wait()

    async def _live(self, number: int) -> int | None:
        """Start one worker and wait for its end. None: it was to end, and is drained."""
        try:
            process = await self._start(number)
        except OSError as error:  # no process or memory is free: as one that ended at once
            log.event("worker-unstarted", logging.ERROR, worker=number, problem=error.strerror)
            return UNSTARTED
        self._processes[number] = process
        listening = asyncio.create_task(self._listen(number, process))
        ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(self._stop.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            await self._drain(number, process, ended)
        listening.cancel()
        return None if self._stop.is_set() else ended.result()

    async def _listen(self, number: int, process: asyncio.subprocess.Process) -> None:
        """Note that a worker serves, and kill it when it does not any more: who is connected to it waits without end.

        It is silent for two times running before that: the first may be our own, where we stood still and it did not.
        """
        assert process.stdout is not None
        if not await process.stdout.read(64):
            return
        self._refused.pop(number, None)
        self._begun.add(number)
        silent = 0
        while silent < 2:
            try:
                async with asyncio.timeout(SILENT_S):
                    if not await process.stdout.read(64):
                        return
                silent = 0
            except TimeoutError:
                silent += 1
        log.event("worker-hung", logging.ERROR, worker=number)
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    def _give_up(self, number: int, code: int, ends: deque[float], *, first: bool) -> bool:
        """Whether starting again cannot help: none can start or serve, or one ends again and again."""
        if code in (BAD, OTHER):
            self._refused[number] = code
            if len(self._refused) < self._count:  # another one serves, or has yet to say what it finds
                return False
            self._code = BAD if BAD in self._refused.values() else 3
        else:
            self._refused.pop(number, None)
            now = time.monotonic()
            often = len(ends) == RESTARTS and now - ends[0] < WITHIN_S
            ends.append(now)
            if not (often or (first and code == 3 and number not in self._begun)):
                return False
            self._code = 3
        log.event("workers-failed", logging.ERROR, code=self._code)
        self._stop.set()
        return True

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        """One worker in a session of its own, so that Ctrl-C reaches it through us."""
        names = ("public", "admin") if number == 0 else ("public",)
        sockets = [f"--socket={name}={self._sockets[name].fileno()}" for name in names]
        command = ["-m", "gateway", "serve", "--config", str(self._configuration.file.absolute()), "--role", self._role]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            f"--worker={number}:{os.getpid()}:{self._count}",
            *sockets,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, STARTED: _shared(self._configuration.settings)},
            pass_fds=[self._sockets[name].fileno() for name in names],
            start_new_session=True,
            preexec_fn=hangup.hold,  # one that is passed on while it still starts would end it
        )

    async def _drain(self, number: int, process: asyncio.subprocess.Process, ended: "asyncio.Task[int]") -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(DRAIN_S):
                code = await asyncio.shield(ended)
        except TimeoutError:
            log.event("worker-killed", logging.ERROR, worker=number)
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                process.kill()
            code = await ended
        if code not in (0, -signal.SIGTERM):  # one that had not begun yet ends by the signal itself
            self._code = self._code or 3

    def _reload(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)
