"""Run the gateway in this process: sockets, store, dispatcher, and a drain on SIGTERM that loses nothing.

The order of the end: stop accepting, let requests in flight be answered (each has been queued before it is), let
dispatches in flight settle, close the store. What is cut off all the same stays in the store and is sent later.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from gateway import asks, connections, hangup, log
from gateway.admission import Admission
from gateway.app import Gateway, public_app
from gateway.configuration import Base, Configuration, load_configuration
from gateway.console import admin_app
from gateway.destination import Destinations
from gateway.dispatcher import Dispatcher
from gateway.engines import ENGINES, hypercorn
from gateway.environment import resolve
from gateway.errors import ConfigError, Problem, Unavailable
from gateway.github import GitHubApp, open_session
from gateway.health import Lookout
from gateway.keys import Keys
from gateway.notify import Notifier
from gateway.overload import Bounds, Overload, networks
from gateway.reconcile import Reconciler
from gateway.reload import Reloader, log_inactive
from gateway.renewal import Renewer
from gateway.rollover import Rollover
from gateway.sender import sender_id, with_sender
from gateway.settings_checks import NOTIFYING
from gateway.settling import Settled
from gateway.storage import open_store
from gateway.store import Store
from gateway.subscriptions import Enrolled
from gateway.sweep import Sweeper
from gateway.tracing import Traces
from gateway.watch import Watch

ADMIN_READ_S = 30  # its pages read bodies without a deadline of their own
UNREAD_S = 30  # a client that reads nothing of its answers for so long is cut off


LOST = "mount or restore the folder; if all of it was revoked, make an empty one there: that ends what waits"


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
    connections.install()
    return uvloop.run(serve(configuration, role, sockets, binds))


def listen(bind: str) -> socket.socket:
    """Bind and listen. Raises PortTaken with the address."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # accepted sockets inherit it: the server below waits without end for a client that does not read
    # https://man7.org/linux/man-pages/man7/tcp.7.html
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
    try:
        listener.bind((host, int(port)))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise PortTaken(f"{bind}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


async def serve(
    configuration: Configuration,
    role: str,
    sockets: dict[str, socket.socket],
    binds: dict[str, str],
    processes: int = 1,
    serving: Callable[[], None] = lambda: None,
) -> int:
    """Serve on listening sockets, by name; a side without one is not served. `processes` share the work of one machine.

    `serving` is called once everything is started.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.set_exception_handler(_log_loop_error)
    async with AsyncExitStack() as stack:
        opened = await fit_store(stack, configuration)
        if opened is None:
            return 3
        store, low_on_disk = opened
        session = await stack.enter_async_context(open_session())
        watch = await open_watch(stack, configuration, store, worker=binds.get("worker"))
        gateway = Gateway(
            configuration,
            _keys(configuration, session),
            store,
            low_on_disk=low_on_disk,
            overload=_overload(configuration),
            watch=watch,
        )
        app = github_app(configuration, session, store.clock)
        lookout = Lookout(lambda: gateway.configuration, store, github=app)
        if role != "dispatch":
            try:
                await open_destination(stack, gateway, app)
            except Unavailable as error:
                log.event("start-refused", logging.ERROR, reason=error.reason)
                return 3
        reloader = Reloader(gateway)
        dispatcher = _dispatcher(gateway, app, reloader) if role != "receive" else None
        if dispatcher is not None:
            gateway.wake = dispatcher.wake
            dispatcher.share(processes)
            await notify(stack, gateway, lookout, session)
            renew(stack, gateway, session, app)
        stack.enter_context(hangup.taken_by(reloader.ask))
        watching = asyncio.create_task(reloader.run())
        served = [(name, side) for name, side in _apps(gateway, lookout, role) if name in sockets]
        tasks = [asyncio.create_task(_http(name, side, sockets[name], stop, configuration)) for name, side in served]
        sending = asyncio.create_task(dispatcher.run()) if dispatcher is not None else None
        stack.push_async_callback(gateway.usage.close, store)
        _settle_memory()
        log.event(
            "serving", role=role, **binds, sources=len(configuration.sources), enrolled=len(configuration.enrolled)
        )
        serving()
        log_inactive(configuration)
        waiting = asyncio.create_task(stop.wait())
        ended, _ = await asyncio.wait(
            {waiting, watching, *tasks, *([sending] if sending else [])}, return_when=asyncio.FIRST_COMPLETED
        )
        failed = waiting not in ended  # a part ended by itself: end all, so that a supervisor starts us anew
        stop.set()
        log.event("draining", logging.ERROR if failed else logging.INFO)
        watching.cancel()
        await asyncio.gather(*tasks, watching, return_exceptions=True)
        if dispatcher is not None and sending is not None:
            dispatcher.stop()
            await asyncio.gather(sending, return_exceptions=True)
        for task in (*tasks, watching, *([sending] if sending else [])):
            if not task.cancelled() and task.exception() is not None:
                log.LOGGER.error("part-failed", exc_info=task.exception())
                failed = True
    log.event("stopped")
    return 3 if failed else 0


async def fit_store(stack: AsyncExitStack, configuration: Configuration) -> tuple[Store, Callable[[], bool]] | None:
    """Open the store; None, with a line in the log, where nothing can be started on it.

    Work that waits for subscriptions whose folder does not exist is kept: a lost mount must not end it as revoked.
    """
    try:
        store, low_on_disk = await open_store(stack, configuration)
        lost = not configuration.folder.exists()
        depths = [await store.depth(name) for name in sorted(await store.sources())] if lost else []
    except Unavailable as error:
        log.event("store-unavailable", logging.ERROR, reason=error.reason)
        return None
    waiting, folder = sum(depth.waiting + depth.sealed for depth in depths), str(configuration.folder)
    if waiting:
        log.event(
            "start-refused", logging.ERROR, reason="subscriptions-missing", folder=folder, waiting=waiting, fix=LOST
        )
        return None
    return store, low_on_disk


def _apps(gateway: Gateway, lookout: Lookout, role: str) -> list[tuple[str, Any]]:
    apps: list[tuple[str, Any]] = [("admin", admin_app(gateway, lookout))]
    return apps if role == "dispatch" else [*apps, ("public", public_app(gateway))]


def _keys(configuration: Configuration, session: aiohttp.ClientSession) -> Keys:
    try:
        return Keys(configuration.settings, lambda: session)
    except ValueError as error:
        raise ConfigError([Problem(str(configuration.file), "sources", str(error), "set it")]) from None


def _overload(configuration: Configuration) -> Overload:
    settings = configuration.settings
    return Overload(Bounds(**settings.limits.model_dump()), networks(settings.server.trusted_proxies))


def github_app(
    configuration: Configuration | Base, session: aiohttp.ClientSession, clock: Callable[[], float] = time.time
) -> GitHubApp:
    """The configured App."""
    settings = configuration.settings.github
    try:
        return GitHubApp(settings.api_url, settings.app_id, resolve(settings.private_key), session, clock=clock)
    except ConfigError as error:
        raise error.at(str(configuration.file)) from None
    except ValueError as error:
        raise ConfigError([Problem(str(configuration.file), "github.private_key", str(error), "set it")]) from None


@asynccontextmanager
async def destinations(configuration: Configuration | Base, store: Store) -> AsyncIterator[Destinations]:
    """What a command reads repositories with."""
    async with open_session() as session:
        yield Destinations(store, github_app(configuration, session))


async def open_destination(stack: AsyncExitStack, gateway: Gateway, app: GitHubApp) -> None:
    """Learn who we are, so that our own events start nothing, and open admission. Raises Unavailable `sender-unknown`."""
    sender = await sender_id(gateway.configuration.settings.github.sender_id, app, gateway.store)
    gateway.prepare = lambda configuration: with_sender(configuration, sender)
    gateway.configuration = gateway.prepare(gateway.configuration)
    found = Destinations(gateway.store, app)
    reconciler = Reconciler(gateway.store, found, lambda: gateway.configuration.enrolled)
    rollover = rollover_of(gateway)
    watching = asyncio.create_task(reconciler.watch())
    stack.callback(watching.cancel)

    async def disagreed(enrolled: Enrolled, dispatch: str) -> None:
        await reconciler.disagreed(enrolled)
        await rollover.refused(enrolled, dispatch)

    gateway.admission = Admission(
        settings=lambda: gateway.configuration.settings.admission,
        sender_id=sender,
        enrolled=lambda digest: gateway.configuration.index.by_digest(digest),  # noqa: PLW0108 (a reload swaps the index)
        store=gateway.store,
        destinations=found,
        jwks=gateway.keys.jwks,
        disagreed=disagreed,
    )


def rollover_of(gateway: Gateway) -> Rollover:
    """What carries a superseded subscription's work over."""
    return Rollover(gateway.store, lambda: gateway.configuration.enrolled, lambda source: gateway.wake(source))  # noqa: PLW0108 (set later)


def _dispatcher(gateway: Gateway, app: GitHubApp, reloader: Reloader) -> Dispatcher:
    async def observe(settled: Settled) -> None:
        answer = settled.answer
        status, until = (None, None) if answer is None else (answer.status, answer.until)
        facts = (settled.batch, settled.outcome, settled.reason)
        gateway.watch.settled(*facts, status=status, took_s=settled.took_s, until=until)

    return Dispatcher(
        store=gateway.store,
        github=app,
        enrolled=lambda digest: gateway.configuration.index.by_digest(digest),  # noqa: PLW0108 (a reload swaps the index)
        sources=lambda: tuple(gateway.configuration.sources),
        read_at=lambda: reloader.read_at,
        carry=rollover_of(gateway).carry,
        gate=asks.gate(gateway.store, clock=gateway.store.clock),
        observe=observe,
        clock=gateway.store.clock,
    )


def renew(stack: AsyncExitStack, gateway: Gateway, session: aiohttp.ClientSession, app: GitHubApp) -> None:
    """Keep alive what expires at a provider, and ask again for what one could not deliver, until the stack ends."""
    for part in (
        Renewer(lambda: gateway.configuration, gateway.store, session),
        Sweeper(lambda: gateway.configuration, gateway.store, session, app),
    ):
        stack.callback(asyncio.create_task(part.run()).cancel)


async def notify(stack: AsyncExitStack, gateway: Gateway, lookout: Lookout, session: aiohttp.ClientSession) -> None:
    """Tell the operator's webhook what needs a person, where one is configured; ended by the stack."""
    settings, profiles = gateway.configuration.settings.notifications, gateway.configuration.profiles
    if settings is not None:
        notifier = Notifier(settings, profiles[NOTIFYING], gateway.store, lookout, session, gateway.watch.metrics)
        await stack.enter_async_context(notifier.running())


async def open_watch(stack: AsyncExitStack, configuration: Configuration, store: Store, worker: str | None) -> Watch:
    """Start counting, and tracing where it is configured; ended by the stack. `worker` is one of several on a machine."""
    settings = configuration.settings.tracing
    traces = None if settings is None else Traces.open(settings, str(configuration.file))
    group = None if worker is None else f"{socket.gethostname()}:{os.getppid()}"
    watch = Watch(traces, worker=worker or "0", group=group)
    await stack.enter_async_context(watch.running(store))
    return watch


def _http(
    name: str, app: Any, listener: socket.socket, stop: asyncio.Event, configuration: Configuration
) -> Coroutine[Any, Any, None]:
    if name != "public":
        return hypercorn(app, listener, stop, ADMIN_READ_S)
    return ENGINES[configuration.settings.server.engine](app, listener, stop)


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
