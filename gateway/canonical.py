"""Canonical URLs and canonical JSON: one way to write a thing, so that it can be built, compared and hashed.

A canonical URL is always *built*: literals that a person reviewed, and authenticated values, each percent-encoded. A URL
that a provider sent is never used, only compared (`agrees`), and what the comparison drops reaches nobody.

Every URL here is https. Nothing in this module raises on what a provider sent; `parse_*` raise ValueError on what a
declaration says.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import rfc8785

from gateway.evidence import NAME, usable_text
from gateway.pointers import MISSING
from gateway.structs import Value

MAX_URL_BYTES: Final = 2048
_MAX_INTEGER: Final = 10**64  # the reader's bound; also keeps str() of an integer from ever raising

_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
# nothing to encode, and no segment that is empty or of dots alone; what else is fine goes the longer way
_PLAIN: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")
_PLAIN_PATH: Final = re.compile(rf"{_PLAIN.pattern}(?:/{_PLAIN.pattern})*")
_ENCODED: Final = {byte: chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in range(256)}
# RFC 3986: https://www.rfc-editor.org/rfc/rfc3986#section-3.3
_PCHAR: Final = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})"
_LITERAL: Final = {
    "path": re.compile(rf"(?:{_PCHAR}|/)*"),
    "query": re.compile(rf"(?:{_PCHAR}|[/?])*"),
    "fragment": re.compile(rf"(?:{_PCHAR}|[/?])*"),
}
_AUTHORITY: Final = re.compile(
    r"([a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*)(?::([1-9][0-9]{0,4}))?"
)


def canonical_json(value: Any) -> bytes:
    """Return RFC 8785 canonical JSON (https://www.rfc-editor.org/rfc/rfc8785).

    Raises ValueError for what it cannot write: non-finite numbers, integers beyond 2^53, lone surrogates, other types.
    """
    try:
        return rfc8785.dumps(value)
    except RecursionError as error:
        raise ValueError("nested too deeply for canonical JSON") from error


def digest(value: Any) -> str:
    """Return `sha256:` and the hex SHA-256 of the value's canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def event_id(url: str) -> str:
    """Return the opaque reference identity of a canonical URL, which its receiver can compute again."""
    return "uri:" + hashlib.sha256(url.encode("utf-8")).hexdigest()


def _normal(text: str) -> str:
    """Decode `%XX` of unreserved characters, once, and write the other escapes in upper case (RFC 3986, 6.2.2)."""
    return _ESCAPE.sub(lambda match: _ENCODED[int(match[1], 16)], text)


# --- origins and templates ------------------------------------------------------------------------------------------


def parse_origin(text: str) -> str:
    """Return a declared https origin in its one form: lower case, without the default port.

    Raises ValueError for anything that is more or less than `https://host` or `https://host:port`.
    """
    origin, rest = _split_origin(text)
    if rest:
        raise ValueError("an origin has no path, query or fragment, nor a slash at its end")
    return origin


def _split_origin(text: str) -> tuple[str, str]:
    if not isinstance(text, str) or not text.startswith("https://"):
        raise ValueError("it must start with https://")
    authority = re.split(r"[/?#]", text[8:], maxsplit=1)[0]
    if "@" in authority:
        raise ValueError("it must not carry user information (@ before the first slash)")
    if "{" in authority or "}" in authority:
        raise ValueError("its host must be literal, without placeholders")
    match = _AUTHORITY.fullmatch(authority.lower()) if authority.isascii() else None
    if match is None or len(match[1]) > 253 or int(match[2] or 443) > 65535:
        raise ValueError("its host must be a plain ASCII name, optionally with a port")
    port = "" if match[2] in {None, "443"} else f":{match[2]}"
    return f"https://{match[1]}{port}", text[8 + len(authority) :]


def has_bad_segment(path: str) -> bool:
    """Tell whether a path has an empty segment or one of dots; one slash at its end, behind a segment, is neither."""
    return path == "/" or any(segment in {"", ".", ".."} for segment in path.removesuffix("/").split("/")[1:])


Region: TypeAlias = Literal["path", "query", "fragment"]


class _Hole(Value):
    """One placeholder: `plus` keeps `/` inside, `form` is a filter or empty."""

    name: str
    plus: bool
    form: str

    def render(self, value: Any) -> str | None:
        """Return the value percent-encoded, None where it cannot stand in a URL."""
        text = _text(value)
        if text is not None and not self.form and (_PLAIN_PATH if self.plus else _PLAIN).fullmatch(text):
            return text
        if text is not None and self.form:
            text = _digits(text) if self.form == "digits" else _lower(text)
        if text is None:
            return None
        segments = text.split("/") if self.plus else [text]
        if any(segment in {"", ".", ".."} for segment in segments):
            return None
        return "/".join("".join(_ENCODED[byte] for byte in segment.encode("utf-8")) for segment in segments)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        # a UTF-8 byte is at least one byte of the URL, so longer text cannot fit and is not worth encoding
        return value if len(value) <= MAX_URL_BYTES and usable_text(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INTEGER:
        return str(value)
    return None


def _digits(text: str) -> str | None:
    kept = text.replace(".", "", 1)
    return kept if kept.isascii() and kept.isdigit() else None


def _lower(text: str) -> str:
    return "".join(char.lower() if char.isascii() else char for char in text)


_HOLE: Final = re.compile(rf"\{{(\+?)({NAME.pattern})(?:\|(digits|lower))?\}}")


class Template(Value):
    """A parsed URL template.

    `text` is what was declared, `origin` its normalized origin, `names` what it needs (in order, once each), `literals`
    the reviewed texts between the placeholders, in normal form.
    """

    text: str
    origin: str
    names: tuple[str, ...]
    literals: tuple[str, ...]
    _parts: tuple[str | _Hole, ...]

    def fill(self, names: Mapping[str, Any]) -> str | None:
        """Return the canonical URL, None where a value is missing or cannot stand in it, or it is over 2,048 bytes."""
        url = [self.origin]
        for part in self._parts:
            if isinstance(part, str):
                url.append(part)
            elif (text := part.render(names.get(part.name, MISSING))) is not None:
                url.append(text)
            else:
                return None
        built = "".join(url)
        return built if len(built) <= MAX_URL_BYTES else None

    def first_unfit(self, names: Mapping[str, Any]) -> str | None:
        """Return the first name whose value is missing or cannot stand in the URL, for an operator to read."""
        holes = (part for part in self._parts if isinstance(part, _Hole))
        return next((hole.name for hole in holes if hole.render(names.get(hole.name, MISSING)) is None), None)


def parse_template(text: str) -> Template:
    """Parse `https://host/literal/{name}/{+name}?key={name|digits}#{name|lower}`.

    Placeholders stand in the path, in query values and in the fragment; `{+name}` in the path alone. Raises ValueError
    with the reason for anything else.
    """
    origin, rest = _split_origin(text)
    parts: list[str | _Hole] = []
    if not rest.startswith("/"):
        raise ValueError("a URL template needs a path after its host")
    for region, piece in _regions(rest):
        parts.extend(_parse_region(region, piece))
    literals = tuple(part for part in parts if isinstance(part, str))
    if len(origin) + sum(map(len, literals)) > MAX_URL_BYTES:
        raise ValueError(f"a URL has at most {MAX_URL_BYTES} bytes")
    names = tuple(dict.fromkeys(part.name for part in parts if isinstance(part, _Hole)))
    return Template(text, origin, names, literals, tuple(parts))


def _regions(rest: str) -> list[tuple[Region, str]]:
    """Split what follows the origin; each piece keeps the `?` or `#` before it."""
    path, query, fragment = _split_rest(rest)
    regions: list[tuple[Region, str]] = [("path", path)]
    regions += [("query", "?" + query)] if query is not None else []
    regions += [("fragment", "#" + fragment)] if fragment is not None else []
    return regions


def _split_rest(rest: str) -> tuple[str, str | None, str | None]:
    before, mark, after = rest.partition("#")
    fragment = after if mark else None
    path, mark, after = before.partition("?")
    return path, after if mark else None, fragment


def _parse_region(region: Region, piece: str) -> list[str | _Hole]:
    mark = "" if region == "path" else piece[0]
    parts = _parse_holes(region, piece[len(mark) :])
    _check_region(region, "".join(part if isinstance(part, str) else "{}" for part in parts))
    return [mark, *parts] if mark else parts


def _parse_holes(region: Region, piece: str) -> list[str | _Hole]:
    parts: list[str | _Hole] = []
    at = 0
    for match in _HOLE.finditer(piece):
        if match.start() == at and parts:
            raise ValueError(f"{match[0]} follows another placeholder; two values would run together")
        if match.start() > at:
            parts.append(_parse_literal(region, piece[at : match.start()]))
        parts.append(_parse_hole(region, match))
        at = match.end()
    return [*parts, _parse_literal(region, piece[at:])] if at < len(piece) else parts


def _parse_literal(region: Region, text: str) -> str:
    if "{" in text or "}" in text:
        raise ValueError("a placeholder is {name}, {+name}, {name|digits} or {name|lower}")
    if _LITERAL[region].fullmatch(text) is None:
        raise ValueError(f"its {region} holds a character that must be written %XX")
    return _normal(text)


def _parse_hole(region: Region, match: re.Match[str]) -> _Hole:
    hole = _Hole(match[2], match[1] == "+", match[3] or "")
    if hole.plus and (hole.form or region != "path"):
        raise ValueError(f"{match[0]}: + stands in the path, without a filter")
    return hole


def _check_region(region: Region, shape: str) -> None:
    """Check a region with its placeholders written `{}`."""
    if region == "path":
        if has_bad_segment(shape):
            raise ValueError("its path has an empty segment or one of dots")
        if "%2F" in shape or "%5C" in shape:
            raise ValueError("its path has an encoded slash")
    elif not shape:
        raise ValueError(f"its {region} is empty")
    elif region == "query" and any("{}" in pair.partition("=")[0] for pair in shape.split("&")):
        raise ValueError("a placeholder in the query stands after the = of its key")


# --- agreement ------------------------------------------------------------------------------------------------------

# Slugs of `agrees`, in the order in which it looks.
URL_TYPE: Final = "url-type"
URL_SURROGATE: Final = "url-surrogate"
URL_CONTROL: Final = "url-control"
URL_WHITE_SPACE: Final = "url-white-space"
URL_BACKSLASH: Final = "url-backslash"
URL_SCHEME: Final = "url-scheme"
URL_USERINFO: Final = "url-userinfo"
URL_HOST: Final = "url-host"
URL_ENCODED_SLASH: Final = "url-encoded-slash"
URL_DOT_SEGMENT: Final = "url-dot-segment"
URL_ORIGIN: Final = "url-origin"
URL_NON_ASCII: Final = "url-non-ascii"
URL_PATH: Final = "url-path"
URL_QUERY: Final = "url-query"
URL_FRAGMENT: Final = "url-fragment"

# How far a comparison came: of several shapes, the nearest one explains the disagreement.
_NEARNESS: Final = (URL_ORIGIN, URL_NON_ASCII, URL_PATH, URL_QUERY, URL_FRAGMENT)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_WHITE_SPACE: Final = re.compile(r"\s")
_SLASH_ESCAPE: Final = re.compile(r"%2f", re.IGNORECASE)


class _Sent(Value):
    origin: str
    segments: tuple[str, ...]
    query: str | None
    fragment: str | None


def agrees(sent: Any, built: str, shapes: Sequence[str] = ()) -> str | None:
    """Compare the URL that a provider sent with the one built, and with other `shapes` filled; None where it agrees.

    Missing or null counts as not sent, and agrees. Otherwise it must have the origin and path of `built` or of a shape,
    or continue that path; a slug, a sub-resource, a trailing slash, and a query or fragment that the built URL does not
    have, are dropped. One that it has must be equal as a whole: a further parameter is a disagreement. The answer is a
    slug that says which rule was broken. An encoded slash and dot segments are looked for in the path, dropped part
    included; in a query they are ordinary data.
    """
    if sent is MISSING or sent is None:
        return None
    if not isinstance(sent, str):
        return URL_TYPE
    if sent == built and "%" not in built:  # a built URL breaks no rule; only an encoded slash in its path would
        return None
    reason = _bad_characters(sent)
    if reason is not None:
        return reason
    parsed = _read_sent(sent)
    if isinstance(parsed, str):
        return parsed
    reasons = [_compare(parsed, _read_built(url)) for url in (built, *shapes)]
    disagreements = [reason for reason in reasons if reason is not None]
    return None if len(disagreements) < len(reasons) else max(disagreements, key=_NEARNESS.index)


def _bad_characters(text: str) -> str | None:
    if not usable_text(text):
        return URL_SURROGATE
    if _CONTROL.search(text):
        return URL_CONTROL
    if _WHITE_SPACE.search(text):
        return URL_WHITE_SPACE
    return URL_BACKSLASH if "\\" in text else None


def _read_sent(text: str) -> _Sent | str:
    """Take a URL apart, or say which rule of syntax it breaks."""
    if text[:8].lower() != "https://":
        return URL_SCHEME
    authority = re.split(r"[/?#]", text[8:], maxsplit=1)[0]
    if "@" in authority:
        return URL_USERINFO
    if not authority.isascii():
        return URL_HOST
    path, query, fragment = _split_rest(text[8 + len(authority) :])
    segments = tuple(map(_normal, path.split("/")[1:]))
    if _SLASH_ESCAPE.search(path):
        return URL_ENCODED_SLASH
    if any(segment in {".", ".."} for segment in segments):
        return URL_DOT_SEGMENT
    return _Sent(_sent_origin(authority), segments, query, fragment)


def _sent_origin(authority: str) -> str:
    host, mark, port = authority.lower().partition(":")
    return f"https://{host}" if port in {"", "443"} else f"https://{host}{mark}{port}"


def _read_built(url: str) -> _Sent:
    origin, rest = _split_origin(url)
    path, query, fragment = _split_rest(rest)
    return _Sent(origin, tuple(path.removesuffix("/").split("/")[1:]), query, fragment)


def _compare(sent: _Sent, built: _Sent) -> str | None:
    if sent.origin != built.origin:
        return URL_ORIGIN
    count = len(built.segments)
    if sent.segments[:count] != built.segments:
        # a look-alike is worth telling from another resource
        return URL_PATH if all(map(str.isascii, sent.segments[:count])) else URL_NON_ASCII
    rest = sent.segments[count:]
    if "" in rest[:-1]:
        return URL_PATH
    if built.query is not None and _normal(sent.query or "") != built.query:
        return URL_QUERY
    if built.fragment is not None and _normal(sent.fragment or "") != built.fragment:
        return URL_FRAGMENT
    return None


# --- extraction -----------------------------------------------------------------------------------------------------

_EXTRACT_HOLE: Final = re.compile(rf"\{{({NAME.pattern})\}}")
_PIECE: Final = re.compile(r"""[^/'"()?#\[\]{}\s]+""")


class Extraction(Value):
    """A parsed `extract` pattern: `lead` before the first hole, then each hole with the literal after it."""

    pattern: str
    names: tuple[str, ...]
    _lead: str
    _tails: tuple[str, ...]

    def apply(self, text: Any) -> dict[str, str] | None:
        """Return every name's text where the whole `text` matches, else None. Linear in the text; never raises.

        A hole ends at the first occurrence of the literal after it, and takes one or more characters, none of them
        `/ ' " ( ) ? # [ ] { }` or white space.
        """
        if not isinstance(text, str) or not usable_text(text) or not text.startswith(self._lead):
            return None
        values: dict[str, str] = {}
        at = len(self._lead)
        for name, tail in zip(self.names, self._tails, strict=True):
            end = text.find(tail, at) if tail else len(text)
            if end < 0 or _PIECE.fullmatch(text, at, end) is None:
                return None
            values[name] = text[at:end]
            at = end + len(tail)
        return values if at == len(text) else None


def parse_extract(pattern: str) -> Extraction:
    """Parse a pattern such as `teams('{team}')/channels('{channel}')`. Raises ValueError with the reason."""
    if not isinstance(pattern, str) or not usable_text(pattern):
        raise ValueError("a pattern is text")
    pieces = _EXTRACT_HOLE.split(pattern)
    lead, names, tails = pieces[0], tuple(pieces[1::2]), tuple(pieces[2::2])
    if any("{" in literal or "}" in literal for literal in (lead, *tails)):
        raise ValueError("a hole is {name}; other braces cannot stand in a pattern")
    if not names:
        raise ValueError("a pattern names at least one part, as {name}")
    if len(set(names)) < len(names):
        raise ValueError("a pattern names each part once")
    if not all(tails[:-1]):
        raise ValueError("two holes need a literal between them")
    return Extraction(pattern, names, lead, tails)
