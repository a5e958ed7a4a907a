"""Copies of pages for the prefix cache's host tier: where the bookkeeping's moves meet the tensors."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import torch
from torch import Tensor

from nextfit.cache import Move
from nextfit.model import State


class HostPages:
    """A page on the host is whole, all layers' parts of it one after another; the draft head's are the last."""

    def __init__(self, state: State, memory: Tensor) -> None:
        """`memory` [pages, bytes of a page] uint8; without pages nothing is ever moved."""
        self.sent = self.returned = 0  # pages copied to the host and back
        self._pairs: list[tuple[Tensor, Tensor]] = []  # (device's, host's) of each paged tensor
        at = 0
        for tensor in state.paged() if len(memory) else ():
            part = memory[:, at : at + tensor[0].nbytes].view(tensor.dtype)
            self._pairs.append((tensor, part.view(-1, *tensor.shape[1:])))
            at += tensor[0].nbytes

    def copy(self, moves: Iterable[Move]) -> None:
        """Carry out `moves`, whose order counts: a page may be free and taken again between two of them."""
        for to_host, run in groupby(moves, key=lambda move: move.to_host):
            pairs = [(m.host, m.device) if to_host else (m.device, m.host) for m in run]
            last = dict(pairs)  # by target: within a run the last one stays
            targets, sources = torch.tensor([*last]), torch.tensor([*last.values()])
            for device, host in self._pairs:
                into, source = (host, device) if to_host else (device, host)
                found = source[sources.to(source.device)].to(into.device)
                into[targets.to(into.device)] = found
            self.sent += len(pairs) * to_host
            self.returned += len(pairs) * (not to_host)
