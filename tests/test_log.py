import json
import logging
import sys

import pytest

from gateway import log
from gateway.errors import Rejection


def line(record: logging.LogRecord) -> dict[str, object]:
    loaded: dict[str, object] = json.loads(log.JsonFormatter().format(record))
    return loaded


def record(name: str = "gateway", message: str = "delivery", **extra: object) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, message, (), None)
    for key, value in extra.items():
        setattr(made, key, value)
    return made


def raised(error: Exception) -> logging.LogRecord:
    made = record()
    try:
        raise error
    except type(error):
        made.exc_info = sys.exc_info()
    return made


def test_our_lines_carry_their_fields_and_others_only_their_place() -> None:
    ours = line(record(fields={"source": "s", "reason": "signature"}))
    assert (ours["event"], ours["source"], ours["reason"], ours["level"]) == ("delivery", "s", "signature", "warning")
    assert line(record(event="dispatch-done", dispatch="d"))["dispatch"] == "d"
    theirs = line(record("hypercorn.error", "GET /?token=planted"))
    assert theirs["logger"] == "hypercorn.error"
    assert "planted" not in json.dumps(theirs)


def test_an_exception_is_named_and_placed_but_not_quoted() -> None:
    made = raised(ValueError("planted-secret"))
    shown = line(made)
    assert shown["error"] == "ValueError"
    assert str(shown["where"]).startswith("tests/test_log.py:")
    assert "planted-secret" not in json.dumps(shown)
    assert line(raised(Rejection("signature", 401)))["reason"] == "signature"


def test_a_terminal_gets_the_same_for_eyes() -> None:
    text = log.TextFormatter().format(record(fields={"source": "s", "reason": None}))
    assert text.endswith("WARNING delivery source=s")


@pytest.mark.parametrize(
    "value", ["a\nlevel=error forged", "\x1b[31mred", "a\rb", "\x9b2J", "\u2028", "\ud800", "\x00"]
)
def test_a_value_neither_begins_a_line_nor_steers_a_terminal(value: str) -> None:
    for text in (
        log.TextFormatter().format(record(fields={"source": value})),
        log.JsonFormatter().format(record(fields={"source": value})),
    ):
        assert not {"\n", "\r"} & set(text)
        assert "\x1b" not in text
        text.encode()
    assert "\x9b" not in log.TextFormatter().format(record(fields={"source": value}))
    assert line(record(fields={"source": value}))["source"] == value


def test_configure_writes_json_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    try:
        log.configure(logging.INFO)
        log.event("serving", role="all")
        log.event("quiet", logging.DEBUG)
    finally:
        logging.getLogger().handlers[:] = before
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(text)["event"] for text in lines] == ["serving"]
