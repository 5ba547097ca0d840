"""A command on a real terminal: what it shows there, and answers typed to it."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
WAIT_S = 30.0


class Terminal:
    """`python -m gateway ARGUMENTS` with a terminal as its standard input, output and error; ended with the block."""

    def __init__(self, *arguments: str | Path, cwd: Path | None = None, stdout: int | None = None) -> None:
        self._master, slave = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parent.parent)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *map(str, arguments)],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (so that Ctrl-C reaches it; one thread here)
        )
        os.close(slave)
        self.raw = ""
        self._seen = 0

    def __enter__(self) -> Self:
        """Nothing to start: it runs."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """End what is left of it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(WAIT_S)
        os.close(self._master)

    @property
    def text(self) -> str:
        """All that was shown, without colours and cursor movements."""
        return ESCAPE.sub("", self.raw)

    def expect(self, wanted: str) -> str:
        """Wait for a text after the last one expected; return what was shown up to it."""
        end = time.monotonic() + WAIT_S
        while (at := self.text.find(wanted, self._seen)) < 0:
            if not self._read(end):
                raise AssertionError(f"{wanted!r} was not shown; shown was:\n{self.text[self._seen :]}")
        shown = self.text[self._seen : at]
        self._seen = at + len(wanted)
        return shown

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._master, line.encode() + b"\n")

    def code(self) -> int:
        """Read to the end and return the exit code."""
        end = time.monotonic() + WAIT_S
        while self._read(end):
            pass
        return self._process.wait(WAIT_S)

    def _read(self, end: float) -> bool:
        """Take what is shown next; False where it has ended or the time is over."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)
