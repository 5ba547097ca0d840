"""The Lua scripts, one a state change, read once from `gateway/lua`."""

import hashlib
from functools import cache
from importlib.resources import files

from gateway.structs import Value


class Script(Value):
    """A script's text and the digest that EVALSHA knows it by (https://valkey.io/commands/evalsha/)."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """Return the script `gateway/lua/<name>.lua`, with the shared part before it."""
    folder = files("gateway") / "lua"
    text = "\n".join((folder / part).read_text("utf-8") for part in ("lib.lua", f"{name}.lua"))
    # EVALSHA names scripts by SHA-1; nothing is proved by it
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
