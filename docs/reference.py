"""Write docs/reference.md from the code: commands, configuration, profiles, store keys. `--check` only compares."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gateway import store
from gateway.cli import main as command
from gateway.environment import data_folder
from gateway.profiles import load_profiles
from gateway.settings import Enrollment, Settings, SourceSettings

TARGET = Path(__file__).with_name("reference.md")
HEAD = """# Reference

Written from the code by `make docs-reference`; `make lint` fails where it is not current. Do not edit.
"""


def commands(one: click.Command, path: str) -> Iterator[str]:
    """Each command with its arguments, options and example."""
    if isinstance(one, click.Group):
        for name in sorted(one.commands):
            yield from commands(one.commands[name], f"{path} {name}")
        return
    context = click.Context(one, info_name=path)
    yield f"### `{path}`\n"
    yield " ".join((one.help or "").split()) + "\n"
    yield f"```\n{one.get_usage(context).removeprefix('Usage: ')}\n```\n"
    rows = [row for row in map(_option, one.params) if row is not None]
    if rows:
        yield "| option | |\n|---|---|\n" + "\n".join(rows) + "\n"
    if one.epilog:
        yield f"{one.epilog.replace('Example: ', 'Example: `', 1)}`\n"


def _option(parameter: click.Parameter) -> str | None:
    if not isinstance(parameter, click.Option) or parameter.hidden:
        return None
    names = "`, `".join(parameter.opts)
    text = parameter.help or ""
    if isinstance(parameter.type, click.Choice):
        text = f"{text} One of {', '.join(parameter.type.choices)}.".strip()
    shown = parameter.show_default
    if isinstance(shown, str):
        text += f" Default: {shown}."
    elif shown and parameter.default is not None:
        text += f" Default: {parameter.default}."
    return f"| `{names}` | {text} |"


def keys(model: type[BaseModel], section: str) -> Iterator[str]:
    """A section of the configuration: key, type, default."""
    rows = []
    inner: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        nested = _model_of(field.annotation)
        if nested is not None and field.annotation in (nested, nested | None):
            inner.append((f"{section}.{key}".lstrip("."), nested))
            continue
        if nested is not None:
            continue
        default = "required" if field.default is PydanticUndefined and field.default_factory is None else field.default
        shown = "empty" if default in ((), PydanticUndefined) else "none" if default is None else str(default)
        limits = ", ".join(f"{type(rule).__name__.lower()} {_bound(rule)}" for rule in field.metadata if _bound(rule))
        rows.append(f"| `{key}` | {_type(field.annotation)} | {shown} | {limits} |")
    if rows:
        yield f"### `[{section}]`\n"
        yield " ".join((model.__doc__ or "").split()) + "\n"
        yield "| key | type | default | bounds |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for name, nested in inner:
        yield from keys(nested, name)


def _bound(rule: Any) -> str:
    return next((str(getattr(rule, name)) for name in ("gt", "ge", "le", "lt") if hasattr(rule, name)), "")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for one in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _type(annotation: Any) -> str:
    text = getattr(annotation, "__name__", str(annotation)) if isinstance(annotation, type) else str(annotation)
    for old, new in (("typing.", ""), ("collections.abc.", ""), (" | None", ""), ("Literal", "one of ")):
        text = text.replace(old, new)
    return f"`{text}`".replace("|", "\\|")


def profiles() -> Iterator[str]:
    """What each shipped profile proves and needs."""
    yield "| profile | proof | identity | optional identity | handshake |\n|---|---|---|---|---|"
    for one in load_profiles(data_folder("profiles")).values():
        needed = [name for name in one.identity if name not in one.identity_optional]
        cells = (
            ", ".join(needed) or "none",
            ", ".join(one.identity_optional) or "none",
            "yes" if one.handshakes else "no",
        )
        yield f"| `{one.name}` | {one.proof.scheme} | {' | '.join(cells)} |"


def text() -> str:
    """The whole page."""
    lines = [HEAD, "## Commands\n", *commands(command, "gateway")]
    lines += [
        "## Configuration\n",
        "Keys of `gateway.toml`; what they mean is in [configuration.md](configuration.md).\n",
    ]
    lines += [*keys(Settings, ""), *keys(SourceSettings, "sources.NAME"), *keys(Enrollment, "[enrollments]")]
    lines += ["## Profiles\n", "\n".join(profiles()) + "\n"]
    table = (store.__doc__ or "").partition("\n\n")[2]
    lines += ["## Keys of the store\n", table.strip() + "\n"]
    lines += [
        "## Exit codes\n",
        "0 done, 1 the answer is no, 2 wrong usage or configuration, 3 something outside failed.\n",
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the page, or with `--check` say whether it is current."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text(), "utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text("utf-8") == text():
        return 0
    sys.stderr.write("docs/reference.md is not current: make docs-reference\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
