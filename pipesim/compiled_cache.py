"""Compiled kernels: kept on disk after their first compilation, which is announced; knows no kernel."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from numba import njit
from numba.core import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def kernel(function: Function) -> Function: ...
@overload
def kernel(**options: Any) -> Callable[[Function], Function]: ...
def kernel(function: Any = None, **options: Any) -> Any:
    """numba's `njit`, kept on disk beside the package or, where that is read-only, in the user's cache.

    Where neither can be written the kernel still works and is compiled once per process. NUMBA_CACHE_DIR
    names another folder. A kernel is compiled anew when its own file changes, so a kernel must not call one
    of another file.
    """
    if function is None:
        return lambda wrapped: kernel(wrapped, **options)
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder it may write to
        return njit(**options)(function)


class _Announcer(event.Listener):  # type: ignore[misc]  # numba has no types
    """Prints one line when the first kernel is really compiled; a kernel read from disk raises no event."""

    def __init__(self, what: str) -> None:
        self.what, self.started = what, 0.0

    def on_start(self, event: object) -> None:
        if not self.started:
            self.started = time.perf_counter()
            _tell(f"compiling the {self.what} (first use only) ...")

    def on_end(self, event: object) -> None:
        """Nothing: kernels call kernels, and the block's end is the end of them all."""


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Says on stderr when kernels are compiled inside the block, and how long it took; else says nothing."""
    announcer = _Announcer(what)
    with event.install_listener("numba:compile", announcer):
        yield
    if announcer.started:
        _tell(f"compiled the {what} in {time.perf_counter() - announcer.started:.1f} s")


def _tell(line: str) -> None:
    sys.stderr.write(f"pipesim: {line}\n")
    sys.stderr.flush()
