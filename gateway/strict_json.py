"""Strict JSON: one meaning for every byte string that is accepted, one `Rejection` for every other.

RFC 8259 leaves duplicate names, huge numbers and deep nesting to the implementation
(https://www.rfc-editor.org/rfc/rfc8259#section-4, #section-6, #section-9); two parsers that differ there let one system
check what another does not act on. So those are refused, before anything is believed.
"""

import json
import math
import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

import orjson

from gateway.errors import Rejection

MAX_DEPTH: Final = 128
MAX_NUMBER_CHARS: Final = 64
MAX_CONTAINERS: Final = 200_000
MAX_VALUES: Final = 1_000_000

_BOM: Final = b"\xef\xbb\xbf"
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKETS: Final = b"[]{}"
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_STEP: Final = tuple(1 if byte in b"[{" else -1 for byte in range(256))
_CONTAINERS: Final = (dict, list)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def loads(data: bytes) -> Any:
    """Decode `data`; raises Rejection (400) `json-duplicate-key`, `json-number`, `json-depth`, `json-size` or `json-syntax`.

    `json-size`: more than 200,000 opening brackets or 1,000,000 commas. A few megabytes of `{},` would otherwise take seconds
    and a gigabyte to decode, and a thread that decodes holds all others up: text costs little, values cost. No provider sends
    anything near it. One UTF-8 byte order mark is skipped. A lone surrogate escape is accepted (see `has_surrogate`). Depth is at most 128
    levels, the document being level 1; a number has at most 64 characters and does not overflow binary64.
    """
    data = data.removeprefix(_BOM)
    if len(data) > MAX_CONTAINERS and (
        data.count(b"[") + data.count(b"{") > MAX_CONTAINERS or data.count(b",") > MAX_VALUES
    ):
        raise Rejection("json-size", 400)
    try:
        document = orjson.loads(data)
        # Written back to the same bytes, nothing was lost: no second key, no number of another form or precision.
        lossless = orjson.dumps(document) == data
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        lossless = False  # not a verdict: lone surrogates, long numbers and deep nesting are judged below
    if not lossless:
        return _loads_slowly(data)
    if _may_be_deep(data):
        _check_levels(document)
    return document


def _may_be_deep(data: bytes) -> bool:
    """Tell whether there are more brackets than `MAX_DEPTH`, looking no further: most bodies have fewer."""
    left = MAX_DEPTH
    for bracket in (b"{", b"["):
        at = data.find(bracket)
        while at >= 0:
            left -= 1
            if left < 0:
                return True
            at = data.find(bracket, at + 1)
    return False


def has_surrogate(text: str) -> bool:
    """Tell whether `text` holds a lone surrogate: it has no UTF-8 form, so it is no evidence and never leaves."""
    return _SURROGATE.search(text) is not None


def _check_levels(document: Any) -> None:
    """Refuse nesting of a decoded document, level by level: no recursion, and no look at the text of strings."""
    level = [document] if type(document) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) in _CONTAINERS
        ]
        if not level:
            return
    raise Rejection("json-depth", 400)


def _check_depth(data: bytes) -> None:
    """Refuse nesting before a recursive parser sees it."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise Rejection("json-depth", 400)


def _loads_slowly(data: bytes) -> Any:
    _check_depth(data)
    try:
        return json.loads(
            data.decode("utf-8"),  # strictly: json.loads would guess UTF-16 from bytes
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Rejection("json-syntax", 400) from error


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise Rejection("json-duplicate-key", 400)
        members[key] = value
    return members


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARS:
        raise Rejection("json-number", 400)
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= MAX_NUMBER_CHARS else math.inf
    if math.isinf(value):
        raise Rejection("json-number", 400)
    return value


def _constant(_text: str) -> float:
    """Refuse NaN, Infinity and -Infinity, which are no JSON."""
    raise Rejection("json-number", 400)
