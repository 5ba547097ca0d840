"""Structured logs: one line a boundary decision. JSON off a terminal, readable on one. Never a header, body or secret."""

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import orjson

from gateway.errors import ConfigError, Rejection, Unavailable

LOGGER = logging.getLogger("gateway")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def event(name: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Log `name` (a slug) with fields: slugs, ids and numbers, no text that came from a delivery."""
    if not LOGGER.isEnabledFor(level):
        return
    handlers = logging.root.handlers
    if len(handlers) == 1 and isinstance(handlers[0], Lines) and not LOGGER.handlers:
        handlers[0].put(_json(time.time(), level, {"event": name, **fields}), level)  # a record would say no more
    else:
        LOGGER.log(level, name, extra={"fields": fields})


class Lines(logging.Handler):
    """Writes JSON lines; those of one turn of the event loop at once, since a write each is most of a line's cost.

    What is at least an error is written at once, with all before it. A kill may take the lines of one turn with it: the
    log is for people, what was admitted stands in the store.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._stream = stream
        self._waiting: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of the logging module's."""
        try:
            self.put(self.format(record), record.levelno)
        except Exception:  # noqa: BLE001 (as every handler: a line that cannot be made must not end its caller)
            self.handleError(record)

    def put(self, line: str, level: int) -> None:
        """Write a line, with this turn's others where there is a loop."""
        self._waiting.append(line)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if level >= logging.ERROR:
            self.flush()
        elif len(self._waiting) == 1:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        lines, self._waiting = self._waiting, []
        with contextlib.suppress(OSError, ValueError):  # nobody reads the log any more: nobody can be told either
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return _json(record.created, record.levelno, _fields(record))


def _json(at: float, level: int, fields: Mapping[str, Any]) -> str:
    shown = {"time": f"{_second(int(at))}.{int(at % 1 * 1000):03}+00:00", "level": _level(level), **fields}
    try:
        return orjson.dumps(shown, default=str).decode()
    except TypeError:  # a lone surrogate: the line is worth more than its speed
        return json.dumps(shown, default=str)


@lru_cache(maxsize=4)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=16)
def _level(level: int) -> str:
    return logging.getLevelName(level).lower()


class TextFormatter(logging.Formatter):
    """The same line for eyes: time, event, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = _fields(record)
        name = fields.pop("event")
        pairs = " ".join(f"{key}={_shown(value)}" for key, value in fields.items() if value is not None)
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname} "
        return f"{time} {mark}{name} {pairs}".rstrip()


def _shown(value: Any) -> str:
    """A value that can neither begin another line nor steer a terminal."""
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in str(value))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given = vars(record).get("fields")
    extra = dict(given) if isinstance(given, Mapping) else {k: v for k, v in vars(record).items() if k not in _STANDARD}
    if record.name.startswith("gateway"):
        fields = {"event": extra.pop("event", record.getMessage()), **extra}
    else:
        # a library's message may quote what a peer sent: only where it came from and what kind of thing it was
        fields = {"event": "library", "logger": record.name, "at": f"{record.module}:{record.lineno}"}
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = record.exc_info[0].__name__  # an exception's text may quote what a peer sent
        traceback = record.exc_info[2]
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        if traceback is not None:
            fields["where"] = (
                f"{'/'.join(Path(traceback.tb_frame.f_code.co_filename).parts[-2:])}:{traceback.tb_lineno}"
            )
        if isinstance(record.exc_info[1], Rejection | Unavailable | ConfigError):
            fields["reason"] = str(record.exc_info[1])
    return fields


def configure(level: int = logging.INFO) -> None:
    """Send all logs to standard error in the form that fits it."""
    handler: logging.Handler = Lines(sys.stderr)
    if sys.stderr.isatty():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    LOGGER.setLevel(level)
