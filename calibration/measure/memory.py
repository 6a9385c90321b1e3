"""Bytes that ops keep and need, counted from tensors; does not time anything."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of each distinct storage, by address."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


@contextmanager
def saved_storages(not_counted: Iterable[Tensor]) -> Iterator[dict[int, int]]:
    """Storages that autograd saves inside the block, each once, without those of `not_counted`."""
    known, found = storages(not_counted), {}

    def pack(tensor: Tensor) -> Tensor:
        found.update(storages([tensor]))
        for address in known:
            found.pop(address, None)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


class LiveBytes(TorchDispatchMode):
    """Bytes of storages made by torch operations inside the block, alive now and at the peak; for CPUs.

    What a kernel allocates for itself alone is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.highest = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._watch(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._watch(tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        return result

    def _watch(self, storage: Any, size: int) -> None:
        if id(storage) in self._sizes:
            return
        self._sizes[id(storage)] = size
        self.alive += size
        self.highest = max(self.highest, self.alive)
        weakref.finalize(storage, self._forget, id(storage))

    def _forget(self, key: int) -> None:
        self.alive -= self._sizes.pop(key)

    def now(self) -> int:
        """Bytes alive."""
        return self.alive

    def reset(self) -> None:
        """Forget the peak so far."""
        self.highest = self.alive

    def peak(self) -> int:
        """The most bytes alive since the last reset."""
        return self.highest


class CudaBytes:
    """The same from the allocator of the current CUDA device, workspaces of kernels included."""

    def __enter__(self) -> CudaBytes:
        return self

    def __exit__(self, *error: object) -> None:
        torch.cuda.synchronize()

    def now(self) -> int:
        """Bytes allocated."""
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated())

    def reset(self) -> None:
        """Forget the peak so far."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """The most bytes allocated since the last reset."""
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())


def byte_meter(device: str) -> LiveBytes | CudaBytes:
    """What counts bytes on `cpu` or `cuda`; a context manager."""
    return CudaBytes() if device.startswith("cuda") else LiveBytes()


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
