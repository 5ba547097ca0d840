"""A private real server for tests: its own temporary folder, a socket, stopped by its pid. Nothing shared, nothing left."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from gateway.embedded import launch, server_binary, write_config


class PrivateValkey:
    """Use as a context. `url` is its address; `restart`, `kill`, `pause` and `resume` do what they say to its pid."""

    def __init__(self, fsync: str = "always", extra: tuple[str, ...] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gwv-"))
        self.socket = self.folder / "s"
        self.fsync = fsync
        self.extra = extra  # further lines of the configuration, which win over those before
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}?db=0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        config = write_config(self.folder, self.socket, self.fsync)
        with config.open("a") as file:
            file.writelines(f"{line}\n" for line in self.extra)
        self.process = launch(server_binary(), config)
        for _ in range(1500):
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "valkey.log").read_text())
            with self.client() as client:
                try:
                    client.ping()
                except (RedisError, OSError):
                    time.sleep(0.01)
                else:
                    return
        raise RuntimeError("the server did not start")

    def client(self) -> "Redis":
        return Redis(unix_socket_path=str(self.socket), decode_responses=True, socket_timeout=5)

    def _signal(self, number: int) -> None:
        if self.process and self.process.poll() is None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self.process:
            self.process.wait(10)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        if self.process:
            self.process.wait(10)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Refuse every write that may need memory, as at `maxmemory`."""
        with self.client() as client:
            client.config_set("maxmemory", "1")
            try:
                yield
            finally:
                client.config_set("maxmemory", "0")
