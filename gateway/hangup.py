"""SIGHUP, which asks for a reload, from the first instant of a process to its last: its default is to end the process."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def taken_by(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` of the running loop at each SIGHUP while this lasts.

    Its default is to end the process, so `hold` makes one that comes earlier wait for this, and after this none
    comes through.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, handler)
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        loop.remove_signal_handler(signal.SIGHUP)


def hold() -> None:
    """Let a SIGHUP wait until `taken_by` takes it. Processes that are started inherit that."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
