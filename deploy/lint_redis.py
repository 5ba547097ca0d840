"""Start a real server with a configuration, on a socket of its own, and ask it whether it would keep our promises."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from redis.asyncio import Redis

from gateway.embedded import launch, server_binary
from gateway.store import check_durability


async def problems_of(socket: Path, name: str) -> list[str]:
    """What the gateway would say of this server."""
    async with Redis(unix_socket_path=str(socket), decode_responses=True) as client:
        found = [str(problem) for problem in await check_durability(client, name)]
        if (await client.config_get("maxmemory-policy"))["maxmemory-policy"] != "noeviction":
            found.append("maxmemory-policy is not noeviction")
        return found


def wait_for(process: "subprocess.Popen[bytes]", socket: Path) -> bool:
    """Whether the server took its configuration."""
    end = time.monotonic() + 10
    while time.monotonic() < end and process.poll() is None:
        if socket.exists():
            return True
        time.sleep(0.05)
    return False


def main(config: Path) -> int:
    """Return 0 where the server takes the file and the gateway would take the server."""
    with tempfile.TemporaryDirectory(prefix="gwl-") as folder:
        path, socket, written = (Path(folder) / name for name in ("valkey.conf", "s", "log"))
        own = [f"dir {folder}", f"unixsocket {socket}", "port 0", f"logfile {written}"]
        path.write_text(config.read_text() + "\n".join(["", *own, ""]))
        process = launch(server_binary(), path)
        try:
            problems = (
                asyncio.run(problems_of(socket, str(config))) if wait_for(process, socket) else [written.read_text()]
            )
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
