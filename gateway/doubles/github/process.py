"""The double as a process of its own: its arguments, its life until a signal, its exit codes."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from gateway.doubles import github
from gateway.doubles.github.world import TOKEN_LIFE_S


def _installation(text: str) -> tuple[int, str]:
    number, separator, repo = text.partition("=")
    if not number.isdecimal() or not separator or repo.count("/") != 1:
        raise argparse.ArgumentTypeError("is written ID=OWNER/NAME")
    return int(number), repo


def _checkout(text: str) -> tuple[str, Path]:
    repo, separator, folder = text.partition("=")
    if repo.count("/") != 1 or not separator or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError("is written OWNER/NAME=FOLDER, and the folder exists")
    return repo, Path(folder)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gateway.doubles.github",
        description=github.__doc__,
        epilog="Example: python -m gateway.doubles.github --port 8090 --app-id 123456 --public-key app.pub "
        "--installation 48213991=acme/app",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--app-id", type=int, required=True)
    parser.add_argument("--public-key", type=Path, required=True, help="PEM file of the App's public key")
    parser.add_argument(
        "--installation",
        type=_installation,
        action="append",
        default=[],
        metavar="ID=OWNER/NAME",
        help="an installation and a repository of it; may be repeated",
    )
    told = "what the default branch holds: the workflows of a folder, as they are now"
    parser.add_argument(
        "--checkout", type=_checkout, action="append", default=[], metavar="OWNER/NAME=FOLDER", help=told
    )
    parser.add_argument("--slug", default="gateway-double")
    parser.add_argument("--bot-id", type=int, default=200_000_001)
    parser.add_argument("--token-life-s", type=float, default=TOKEN_LIFE_S)
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT; say the address in one line of JSON."""
    installations: dict[int, list[str]] = {}
    for number, repo in options.installation:
        installations.setdefault(number, []).append(repo)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    double = await github.start(
        app_id=options.app_id,
        public_key_pem=await asyncio.to_thread(options.public_key.read_bytes),
        installations=installations,
        host=options.host,
        port=options.port,
        slug=options.slug,
        bot_id=options.bot_id,
        token_life_s=options.token_life_s,
    )
    for name, folder in options.checkout:
        repo = double.double.add_repository(name)
        repo.contents.clear()  # the consent is the checkout's own
        repo.checkout = folder
    try:
        sys.stdout.write(
            orjson.dumps({"event": "listening", "address": double.address, "url": double.address}).decode() + "\n"
        )
        sys.stdout.flush()
        await stop.wait()
    finally:
        await double.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the double as a process of its own; 3 where its port is taken, 2 where its key cannot be used."""
    options = _arguments(arguments)
    try:
        asyncio.run(serve(options))
    except OSError as error:
        sys.stderr.write(f"github double: {error.strerror or error}\n")
        return 3
    except (ValueError, TypeError):
        sys.stderr.write("github double: --public-key is not a PEM file of an RSA public key\n")
        return 2
    return 0
