"""What stands around the process: secrets by reference, names of the environment, the shipped folders. Its only reader.

A secret's value is read by `resolve` and kept nowhere here.
"""

import os
import pwd
import re
import socket
import stat
from pathlib import Path

SECRET_BYTES = 65_536  # more is no secret but a wrong file


def check_reference(reference: str) -> str:
    """Return the secret reference; it is `env:NAME` or `file:/absolute/path`, never a value."""
    if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*", reference) or re.fullmatch(r"file:/.+", reference):
        return reference
    if reference.startswith("file:"):
        raise ValueError("must name an absolute path: file:/path")
    raise ValueError("must be a reference: env:NAME or file:/path (the value itself never stands here)")


def resolve(reference: str) -> bytes:
    """The value of a secret reference, without a file's one trailing newline. Raises ValueError, never with the value."""
    kind, _, name = check_reference(reference).partition(":")
    value = os.environ.get(name, "").encode(errors="surrogateescape") if kind == "env" else _content(name)
    if not value:
        raise ValueError(f"{reference} is {'not set or empty' if kind == 'env' else 'empty'}")
    return value


def _content(name: str) -> bytes:
    """A secret's file. Anything but a regular file of a secret's size is refused: reading it might never end."""
    try:
        status = Path(name).stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= SECRET_BYTES:
            return Path(name).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ValueError(f"file:{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"file:{name} cannot be read: Is a directory")
    what = f"over {SECRET_BYTES} bytes: no secret" if stat.S_ISREG(status.st_mode) else "not a regular file"
    raise ValueError(f"file:{name} is {what}")


def text_problem(value: bytes) -> str | None:
    """Say why a secret cannot be what the other side has, None where it can. Never quotes it."""
    if any(byte < 0x20 or byte == 0x7F for byte in value):
        return "holds a line break or another control character"
    try:
        value.decode()
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    return None


def data_folder(name: str) -> Path:
    """The shipped folder `profiles` or `subscriptions`: inside the wheel, or at the root of a checkout."""
    packaged = Path(__file__).parent / "data" / name
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / name


def default_path() -> Path:
    """`gateway.toml` here, else what GATEWAY_CONFIG names."""
    here = Path("gateway.toml")
    named = os.environ.get("GATEWAY_CONFIG")
    return here if here.exists() or not named else Path(named)


def operator() -> str:
    """Who acts: GATEWAY_OPERATOR, else the user behind sudo, else this user; with the machine's name."""
    name = os.environ.get("GATEWAY_OPERATOR") or os.environ.get("SUDO_USER")
    if not name:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a container's user has no name
            name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"
