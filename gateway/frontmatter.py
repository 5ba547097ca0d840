"""Markdown frontmatter, read as YAML 1.2 (https://yaml.org/spec/1.2.2/) in the one way that leaves no doubt.

Values are built from the parser's events, not by a YAML library's constructor: that one turns dates, `1_000` and `0b11`
into something else than text, honours `%YAML 1.1` (where `on` is a boolean), and lets an alias multiply a document.
Here a plain scalar is null, a boolean or a number by the core schema of YAML 1.2, else text; a second key of the same
name, a directive, a tag, a key that is no text and an unbounded or cyclic alias are refused, each with its line. So is
what one reader takes for the end of a line and another does not, or what shows a person another text than is read.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from gateway.errors import ConfigError, Problem
from gateway.strict_json import has_surrogate
from gateway.structs import Opaque, field

MAX_BYTES: Final = 256 * 1024  # declarations have a limit of 256 KiB (gh-aw connector specification, section 6)
MAX_NODES: Final = 20_000  # counted after aliases are expanded
MAX_DEPTH: Final = 64

# NEL, LS and PS end a line for some readers (YAML 1.1, Python) and not for others (YAML 1.2, Go); a mark of byte order or
# of writing direction is seen by nobody (https://www.unicode.org/reports/tr55/). Written as an escape they are plain to see.
_UNSEEN: Final = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ufeff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LINE_END: Final = re.compile("\r\n|\r|\n")
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL: Final = re.compile(r"0o[0-7]+\Z")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NO_NUMBER: Final = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_MAX_NUMBER_CHARS: Final = 64  # as of a JSON number

Path = tuple[str | int, ...]


class Document(Opaque):
    """A decoded frontmatter: its `value` (a mapping) and the `lines` that its keys stand on, for messages."""

    file: str
    value: Mapping[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)

    def problem(self, path: Path, problem: str, fix: str) -> Problem:
        """Make a Problem that names the key at `path` and the nearest known line."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                problem = f"line {self.lines[path[:length]]}: {problem}"
                break
        return Problem(self.file, ".".join(map(str, path)), problem, fix)


def load_frontmatter(content: str | bytes, file: str) -> Document:
    """Read the YAML between the first line `---` and the next one. Raises ConfigError."""
    text = content if isinstance(content, str) else _decoded(content, file)
    lines = _LINE_END.split(text.removeprefix("\ufeff"))
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConfigError([Problem(file, "", "is larger than 256 KiB", "select and keep less in one file")])
    if not lines or lines[0].rstrip() != "---":
        raise ConfigError([Problem(file, "", "line 1: has no frontmatter", "begin the file with a line ---")])
    ends = [number for number, line in enumerate(lines) if number and line.rstrip() == "---"]
    if not ends:
        raise ConfigError([Problem(file, "", "line 1: the frontmatter does not end", "close it with a line ---")])
    return load_yaml("\n".join(lines[1 : ends[0]]) + "\n", file, first_line=2)


def _decoded(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(file, "", f"line {line}: is not UTF-8", "save it as UTF-8")]) from error


def load_yaml(text: str, file: str, first_line: int = 1) -> Document:
    """Read one YAML 1.2 document whose top is a mapping. Raises ConfigError with file, line, key and fix."""
    unseen = _UNSEEN.search(text, pos=text.startswith("\ufeff"))
    if unseen is not None:
        line = len(_LINE_END.findall(text, 0, unseen.start())) + first_line
        problem = f"line {line}: holds U+{ord(unseen[0]):04X}, which readers disagree on or nobody sees"
        raise ConfigError([Problem(file, "", problem, "remove it, or write it as an escape in a quoted text")])
    builder = _Builder(file, first_line)
    try:
        # A fresh instance each time: a %YAML directive sticks to a reused one.
        value = builder.document(iter(YAML(typ="safe", pure=True).parse(text)))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + first_line}: " if mark else ""
        raise ConfigError([Problem(file, "", f"{where}{error.problem}", "repair the YAML")]) from error
    except (YAMLError, ValueError, OverflowError) as error:  # the last two: an escape beyond Unicode
        raise ConfigError(
            [Problem(file, "", "is no YAML: it holds a character that YAML forbids", "remove it")]
        ) from error
    if not isinstance(value, dict):
        raise ConfigError([Problem(file, "", f"line {first_line}: is no mapping", "write `key: value` lines")])
    return Document(file, value, builder.lines)


class _Builder:
    """Builds one document from parser events; the only state is what bounds and messages need."""

    def __init__(self, file: str, first_line: int) -> None:
        self.file = file
        self.first_line = first_line
        self.lines: dict[Path, int] = {}
        self.nodes = 0
        self.deepest = 0
        self.anchors: dict[str, tuple[Any, int, int]] = {}  # value, nodes, levels below it

    def fail(self, event: Any, path: Path, problem: str, fix: str) -> ConfigError:
        line = event.start_mark.line + self.first_line
        return ConfigError([Problem(self.file, ".".join(map(str, path)), f"line {line}: {problem}", fix)])

    def document(self, events: Iterator[Any]) -> Any:
        value: Any = None
        seen = False
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if event.version is not None or event.tags:
                    raise self.fail(event, (), "has a % directive", "remove it: YAML 1.2 is what is read")
                if seen:
                    raise self.fail(event, (), "has a second document", "keep one")
                seen = True
                value = self.node(next(events), events, ())
        return value

    def count(self, event: Any, path: Path, size: int, levels: int) -> None:
        self.nodes += size
        self.deepest = max(self.deepest, len(path) + levels)
        if self.nodes > MAX_NODES or self.deepest > MAX_DEPTH:
            raise self.fail(event, path, "is too large or too deep, aliases expanded", "write less")

    def node(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors:
                raise self.fail(event, path, "an alias has no finished anchor before it", "define the anchor first")
            value, size, levels = self.anchors[event.anchor]
            self.count(event, path, size, levels)
            return value
        if event.tag is not None:
            raise self.fail(event, path, "has a tag", "remove it: values are plain")
        outside, self.deepest = self.deepest, len(path)
        self.count(event, path, 1, 0)
        before = self.nodes
        if isinstance(event, MappingStartEvent):
            value = self.mapping(event, events, path)
        elif isinstance(event, SequenceStartEvent):
            value = self.sequence(events, path)
        else:
            value = self.scalar(event, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.nodes - before + 1, self.deepest - len(path))
        self.deepest = max(self.deepest, outside)
        return value

    def sequence(self, events: Iterator[Any], path: Path) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            self.lines[(*path, len(values))] = event.start_mark.line + self.first_line
            values.append(self.node(event, events, (*path, len(values))))
        return values

    def mapping(self, start: Any, events: Iterator[Any], path: Path) -> dict[str, Any]:
        members: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        self.lines.setdefault(path, start.start_mark.line + self.first_line)
        while not isinstance(event := next(events), MappingEndEvent):
            key = self.key(event, path)
            here = (*path, key)
            if key in members or (key == "<<" and event.style is None and here in self.lines):
                raise self.fail(event, here, "stands twice", "keep one of them; <<: takes a list")
            self.lines[here] = event.start_mark.line + self.first_line
            if key == "<<" and event.style is None:
                self.merge(event, self.node(next(events), events, here), merged, path)
                continue
            members[key] = self.node(next(events), events, here)
        return merged | members

    def key(self, event: Any, path: Path) -> str:
        if not isinstance(event, ScalarEvent) or event.tag is not None or event.anchor is not None:
            raise self.fail(event, path, "has a key that is no plain text", "write a text key")
        value = self.scalar(event, path)
        if value is None and event.value == "null":
            return "null"  # the name of a test; nothing here has a null key, so the plain spelling is unambiguous
        if not isinstance(value, str):
            raise self.fail(event, path, "has a key that is no text", "quote it")
        return value

    def merge(self, event: Any, source: Any, merged: dict[str, Any], path: Path) -> None:
        """Add the members of a merge key; earlier sources win, explicit keys win over all."""
        for mapping in source if isinstance(source, list) else [source]:
            if not isinstance(mapping, dict):
                raise self.fail(event, (*path, "<<"), "merges what is no mapping", "merge an anchored mapping")
            for key, value in mapping.items():
                merged.setdefault(key, value)

    def scalar(self, event: Any, path: Path) -> Any:
        text: str = event.value
        if has_surrogate(text):
            raise self.fail(event, path, "holds half of a surrogate pair", "write the character itself")
        if event.style is not None:
            return text
        if text in _NULL:
            return None
        return _BOOL[text] if text in _BOOL else self.number(text, event, path)

    def number(self, text: str, event: Any, path: Path) -> Any:
        """Return the number that a plain scalar is by the core schema, else the text itself."""
        if _NO_NUMBER.match(text):
            raise self.fail(event, path, "is a number that JSON does not have", "quote it, or write a number")
        for pattern, base in ((_INT, 10), (_OCTAL, 8), (_HEX, 16), (_FLOAT, 0)):
            if not pattern.match(text):
                continue
            if len(text) > _MAX_NUMBER_CHARS:
                raise self.fail(event, path, "is a number of more than 64 characters", "quote it, or write less")
            if base:
                return int(text, base)
            value = float(text)
            if math.isinf(value):
                raise self.fail(event, path, "is a number that overflows", "write a smaller one")
            return value
        return text
