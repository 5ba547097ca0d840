"""Several receiver processes on the same sockets: `server.workers`.

This process binds, owns the embedded store, starts the workers and watches them; it takes no request itself. Each worker
is a whole `gateway serve`: leases and locks in the store keep what they share apart. The first has the admin side. A
worker that ends is started again; when that does not help, all end, so that the supervisor above starts us anew. One
that finds the configuration bad by now is started again later: those that read it while it was good go on.
The order of the end: workers drain, then the store stops.
"""

import asyncio
import contextlib
import ctypes
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

PR_SET_PDEATHSIG = 1  # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
EARLY_S = 5.0  # an end this soon after the first start is a refusal to start
RESTARTS, WITHIN_S = 5, 60.0
BACKOFF_S = 0.5
BAD = 2  # the exit code of what refuses its configuration
REFUSED_S = 5.0  # a configuration is mended by a person: looked at so often
DRAIN_S = 60.0


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


def run_worker(config: Path, role: str, number: int, parent: int, sockets: dict[str, int]) -> int:
    """Serve as one of several on inherited sockets. Ends with its parent, whatever ended that."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked to be told
        return 3
    configuration = load_configuration(config)
    taken = {name: socket.socket(fileno=number_) for name, number_ in sockets.items()}
    for one in taken.values():
        one.setblocking(False)
    binds = {"worker": str(number)}
    connections.install()
    return uvloop.run(server.serve(configuration, role, taken, binds, configuration.settings.server.workers))


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
        self._stop = asyncio.Event()
        self._code = 0
        self._restarts: deque[float] = deque(maxlen=RESTARTS)

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
        first, began = True, 0.0
        while not self._stop.is_set():
            began = time.monotonic()
            process = await self._start(number)
            self._processes[number] = process
            ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(self._stop.wait())
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not ended.done():
                await self._drain(number, process, ended)
                return
            if self._stop.is_set():
                return
            code = ended.result()
            log.event("worker-ended", logging.ERROR, worker=number, code=code)
            if self._give_up(code, early=first and time.monotonic() - began < EARLY_S):
                return
            first = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFUSED_S if code == BAD else BACKOFF_S * 2 ** min(len(self._restarts), 4)):
                    await self._stop.wait()

    def _give_up(self, code: int, *, early: bool) -> bool:
        """Whether starting again cannot help: none can start or serve, or they end again and again."""
        if code == BAD:
            if any(process.returncode is None for process in self._processes.values()):
                return False
        else:
            now = time.monotonic()
            often = len(self._restarts) == RESTARTS and now - self._restarts[0] < WITHIN_S
            self._restarts.append(now)
            if not (often or (early and code == 3)):
                return False
        self._code = code if code == BAD else 3
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
            f"--worker={number}:{os.getpid()}",
            *sockets,
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
            process.kill()
            code = await ended
        if code not in (0, -signal.SIGTERM):  # one that had not begun yet ends by the signal itself
            self._code = self._code or 3

    def _reload(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)
