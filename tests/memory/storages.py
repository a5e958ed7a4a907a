"""Memory as torch's dispatcher sees it, by code that knows nothing of the plan or the arena."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Peak(TorchDispatchMode):
    """Bytes of all storages that operators made and that are still alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        old = {x.untyped_storage()._cdata for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_flatten(out)[0]:
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in old and storage._cdata not in self.alive:
                    self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, n = storage._cdata, storage.nbytes()
        self.alive[key] = n
        self.now += n
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)
