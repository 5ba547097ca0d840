"""Run the gateway in this process: sockets, store, dispatcher, and a drain on SIGTERM that loses nothing.

The order of the end: stop accepting, let requests in flight be answered (each has been queued before it is), let
dispatches in flight settle, close the store. What is cut off all the same stays in the store and is sent later.
"""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework

from gateway import log
from gateway.app import Gateway, admin_app, public_app
from gateway.dispatcher import Dispatcher
from gateway.embedded import Embedded
from gateway.errors import ConfigError, Problem, Unavailable
from gateway.github import GitHubApp, open_session
from gateway.keys import Keys
from gateway.overload import Bounds, Overload, networks
from gateway.settings import Configuration, load_configuration, resolve
from gateway.store import Store

DRAIN_S = 20.0  # above the body deadline (8) plus the store's time (2), so that Hypercorn never cuts a request off


class PortTaken(Exception):  # noqa: N818 (told to the operator, exit 3)
    """A bind address is in use."""


def run(config: Path, role: str, admin_bind: str | None) -> int:
    """Serve until told to stop; return the exit code."""
    configuration = load_configuration(config)
    binds = {"admin": admin_bind or configuration.settings.server.admin_bind}
    if role != "dispatch":
        binds["public"] = configuration.settings.server.bind
    try:
        sockets = {name: listen(bind) for name, bind in binds.items()}
    except PortTaken as error:
        log.event("port-taken", logging.ERROR, bind=str(error))
        return 3
    return uvloop.run(_serve(configuration, role, sockets, binds))


def listen(bind: str) -> socket.socket:
    """Bind and listen. Raises PortTaken with the address."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise PortTaken(f"{bind}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


async def _serve(
    configuration: Configuration, role: str, sockets: dict[str, socket.socket], binds: dict[str, str]
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.set_exception_handler(_log_loop_error)
    async with AsyncExitStack() as stack:
        try:
            store, low_on_disk = await open_store(stack, configuration)
        except Unavailable as error:
            log.event("store-unavailable", logging.ERROR, reason=error.reason)
            return 3
        session = await stack.enter_async_context(open_session())
        gateway = Gateway(
            configuration,
            _keys(configuration, session),
            store,
            low_on_disk=low_on_disk,
            overload=_overload(configuration),
        )
        dispatcher = _dispatcher(gateway, session) if role != "receive" else None
        if dispatcher is not None:
            gateway.wake = dispatcher.wake
        loop.add_signal_handler(signal.SIGHUP, lambda: reload(gateway))
        tasks = [asyncio.create_task(_http(app, sockets[name], stop)) for name, app in _apps(gateway, role)]
        sending = asyncio.create_task(dispatcher.run()) if dispatcher is not None else None
        _settle_memory()
        log.event(
            "serving", role=role, **binds, sources=len(configuration.sources), enrolled=len(configuration.enrolled)
        )
        for one, reason in configuration.index.inactive:
            log.event("subscription-inactive", logging.WARNING, digest=one.subscription.digest, reason=reason)
        waiting = asyncio.create_task(stop.wait())
        ended, _ = await asyncio.wait(
            {waiting, *tasks, *([sending] if sending else [])}, return_when=asyncio.FIRST_COMPLETED
        )
        failed = waiting not in ended  # a part ended by itself: end all, so that a supervisor starts us anew
        stop.set()
        log.event("draining", logging.ERROR if failed else logging.INFO)
        await asyncio.gather(*tasks, return_exceptions=True)
        if dispatcher is not None and sending is not None:
            dispatcher.stop()
            await asyncio.gather(sending, return_exceptions=True)
        for task in (*tasks, *([sending] if sending else [])):
            if task.exception() is not None:
                log.LOGGER.error("part-failed", exc_info=task.exception())
                failed = True
    log.event("stopped")
    return 3 if failed else 0


def _apps(gateway: Gateway, role: str) -> list[tuple[str, Any]]:
    apps = [("admin", admin_app(gateway))]
    return apps if role == "dispatch" else [*apps, ("public", public_app(gateway))]


def _keys(configuration: Configuration, session: aiohttp.ClientSession) -> Keys:
    try:
        return Keys(configuration.settings, lambda: session)
    except ValueError as error:
        raise ConfigError([Problem(str(configuration.file), "sources", str(error), "set it")]) from None


def _overload(configuration: Configuration) -> Overload:
    settings = configuration.settings
    return Overload(Bounds(**settings.limits.model_dump()), networks(settings.server.trusted_proxies))


def _dispatcher(gateway: Gateway, session: aiohttp.ClientSession) -> Dispatcher:
    settings = gateway.configuration.settings.github
    app = GitHubApp(settings.api_url, settings.app_id, resolve(settings.private_key), session)
    return Dispatcher(
        store=gateway.store,
        github=app,
        enrolled=lambda digest: gateway.configuration.index.by_digest(digest),  # noqa: PLW0108 (a reload swaps the index)
        sources=lambda: tuple(gateway.configuration.sources),
    )


async def open_store(stack: AsyncExitStack, configuration: Configuration) -> tuple[Store, Callable[[], bool]]:
    """Open the store, starting the embedded one where that is configured; closed and stopped by the stack.

    The second value says whether the embedded store's disk is nearly full; for another server that is its operator's watch.
    """
    settings = configuration.settings.store
    low_on_disk, url = (lambda: False), settings.url
    if settings.embedded is not None:
        embedded = await stack.enter_async_context(Embedded(configuration.file.parent.absolute() / settings.embedded))
        low_on_disk, url = embedded.low_on_disk, embedded.url
    assert url is not None  # one of the two is set: settings refuse anything else
    store = await Store.open(
        url,
        file=str(configuration.file),
        relaxed=settings.durability == "relaxed",
        wait_replicas=settings.wait_replicas,
    )
    stack.push_async_callback(store.close)
    return store, low_on_disk


def reload(gateway: Gateway) -> None:
    """Take the configuration anew; a bad one keeps the old and says so."""
    try:
        configuration = load_configuration(gateway.configuration.file)
        gateway.keys.replace(configuration.settings)
    except ConfigError as error:
        for problem in error.problems:
            log.event("reload-refused", logging.ERROR, file=problem.file, key=problem.key, problem=problem.problem)
    except ValueError as error:
        log.event("reload-refused", logging.ERROR, problem=str(error))
    else:
        gateway.configuration = configuration
        log.event("reloaded", sources=len(configuration.sources), enrolled=len(configuration.enrolled))


async def _http(app: ASGIFramework, listener: socket.socket, stop: asyncio.Event) -> None:
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]  # detached: Hypercorn owns and closes it
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.include_date_header = False
    config.include_server_header = False
    config.graceful_timeout = DRAIN_S
    config.read_timeout = 30
    config.keep_alive_timeout = 60
    config.keep_alive_max_requests = 1_000_000
    config.h11_max_incomplete_size = 32_768
    await hypercorn_serve(_http1_only(app), config, shutdown_trigger=stop.wait)


def _http1_only(app: Any) -> Any:
    """Refuse prior-knowledge HTTP/2, which no switch turns off: its connection ends with streams in flight unanswered."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["http_version"].startswith("2"):
            await send({"type": "http.response.start", "status": 505, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return guarded


def _log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, ConnectionError | TimeoutError):  # a client that vanished is no error
        return
    log.LOGGER.error("loop-error", exc_info=error)


def _settle_memory() -> None:
    """Everything made at start lives on: keep it out of collections, and collect rarely, for the latency's tail."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
