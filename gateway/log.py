"""Structured logs: one line a boundary decision. JSON off a terminal, readable on one. Never a header, body or secret."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from gateway.errors import ConfigError, Rejection, Unavailable

LOGGER = logging.getLogger("gateway")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def event(name: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Log `name` (a slug) with fields: slugs, ids and numbers, no text that came from a delivery."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, name, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **_fields(record),
        }
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # a lone surrogate: the line is worth more than its speed
            return json.dumps(line, default=str)


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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    LOGGER.setLevel(level)
