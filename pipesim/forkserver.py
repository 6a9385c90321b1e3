"""Worker processes that leave Ctrl-C to their parent; does not know what they work on."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from multiprocessing import forkserver
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkServerContext


def forkserver_context(preload: Sequence[str]) -> ForkServerContext:
    """Processes forked from a server that has imported `preload` once.

    Server and processes ignore SIGINT from their first moment: importing takes seconds, and Ctrl-C in them would
    print a traceback each.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    if threading.current_thread() is threading.main_thread():  # elsewhere handlers cannot be set
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is ignored stays so in a started process
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)
    return context
