"""What the ranks of a tensor-parallel group tell one another, counted."""

from __future__ import annotations

import torch
from torch import Tensor, distributed as dist


class Collectives:
    """The two collectives that tensor-parallel inference needs; of one rank alone they do and count nothing.

    Args:
        group: Processes that hold a model together. None: this one alone.

    Attributes:
        size: How many ranks.
        rank: Which of them this is.
        calls: How often they have spoken.
        bytes: What this rank has given to it.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()
        self.calls = 0
        self.bytes = 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over ranks; overwrites the tensor."""
        if self.size > 1:
            self._count(tensor)
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[R, size · n] from the [R, n] of each rank, in order of ranks."""
        if self.size == 1:
            return tensor
        self._count(tensor)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts, dim=-1)

    def _count(self, tensor: Tensor) -> None:
        self.calls += 1
        self.bytes += tensor.numel() * tensor.element_size()
