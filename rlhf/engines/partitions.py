"""How DeepSpeed parts the fp32 master weights, their gradients and optimiser states over processes.

Of every trained weight a process holds a *fragment*: a stretch of the flattened weight, perhaps all of it, perhaps
nothing. Three layouts answer the same questions: :class:`Replicated` (stage 0), :class:`FlatGroups` (stages 1 and 2: a
process owns a stretch of all weights in a row) and :class:`ShardedWeights` (stage 3: of every weight a stretch).

What stands here reads DeepSpeed's own structures, which its public functions reach for some stages only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlhf import distributed
from rlhf.errors import UserError

Slots = dict[str, Tensor]
"""What an optimiser keeps for a flat tensor, by its own names: tensors of the same shape, and single numbers."""


class Partition(ABC):
    """The trained weights of one DeepSpeed engine.

    Args:
        engine: From ``deepspeed.initialize``.
        parameters: The trained weights by name, in the order of every list that is answered.
    """

    shared = True
    """Whether a process holds only some of each weight, or of the weights."""

    def __init__(self, engine: Any, parameters: dict[str, nn.Parameter]) -> None:
        self.engine = engine
        self.names = list(parameters)
        self.parameters = list(parameters.values())

    @property
    def zero(self) -> Any:
        """DeepSpeed's wrapper of the optimiser."""
        return self.engine.optimizer

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The torch optimiser inside DeepSpeed's wrapper."""
        return getattr(self.zero, "optimizer", self.zero)

    @abstractmethod
    def shape(self, number: int) -> torch.Size:
        """Shape of a whole weight."""

    @abstractmethod
    def start(self, number: int) -> int:
        """Where in the flattened weight this process's fragment begins."""

    @abstractmethod
    def master(self, number: int) -> Tensor:
        """This process's fragment of the fp32 weight, 1-D, to be read or written in place."""

    @abstractmethod
    def gradient(self, number: int) -> Tensor:
        """This process's fragment of the gradient of all processes, 1-D, accumulated so far; a copy."""

    @abstractmethod
    def working(self, number: int) -> Tensor:
        """What the model computes with, as far as this process stores it; read by ``substituted`` to put it back."""

    @abstractmethod
    def put(self, number: int, fragment: Tensor) -> None:
        """Writes a weight, given as its fragments, into what the model computes with; the fp32 master stays.

        Every process has to call it.
        """

    @abstractmethod
    def _slots(self, number: int) -> tuple[Slots, slice]:
        """What the optimiser keeps for the flat tensor that a weight's fragment lies in, and where."""

    def restore(self, number: int, data: Tensor) -> None:
        """Puts back what :meth:`working` had, copied."""
        self.working(number).copy_(data)

    # ---------------------------------------------------------------------------------------------------- whole weights

    def whole(self, fragment: Tensor, number: int) -> Tensor:
        """The whole of a weight's fragments on all processes: every process has to ask. fp32, in the weight's shape."""
        if not self.shared:
            return fragment.detach().float().reshape(self.shape(number)).clone()
        shape, start = self.shape(number), self.start(number)
        buffer = torch.zeros(shape.numel(), dtype=torch.float32, device=fragment.device)
        buffer[start : start + fragment.numel()] = fragment.detach().float()
        dist.all_reduce(buffer)  # of stretches that do not overlap: nothing is rounded
        return buffer.view(shape)

    def cut(self, full: Tensor, number: int) -> Tensor:
        """This process's fragment of a whole weight."""
        start = self.start(number)
        return full.flatten()[start : start + self.master(number).numel()]

    # ------------------------------------------------------------------------------------------------- optimiser states

    def optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        """What the optimiser keeps for each weight, whole: every process has to ask."""
        kinds = self._kinds()
        found: dict[str, dict[str, Tensor]] = {name: {} for name in self.names}
        numbers: dict[str, dict[str, Tensor]] = {name: {} for name in self.names}
        for number, name in enumerate(self.names):
            slots, place = self._slots(number)
            for key, single in kinds.items():
                value = slots.get(key)
                if not single:
                    fragment = self.master(number).new_empty(0) if value is None else value.reshape(-1)[place]
                    found[name][key] = self.whole(fragment, number)
                elif value is not None:
                    numbers[name][key] = torch.as_tensor(value).detach().cpu().clone()
        for part in distributed.gather(numbers):
            for name, values in part.items():
                found[name] |= values
        return found

    def load_optimizer_state(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Puts states from :meth:`optimizer_state` back, whatever the partition they were taken from."""
        for number, name in enumerate(self.names):
            slots, place = self._slots(number)
            for key, value in state.get(name, {}).items():
                if value.ndim == 0 and self.shape(number) != value.shape:
                    slots[key] = value.clone()
                elif place.stop > place.start:
                    if key not in slots:
                        slots[key] = torch.zeros_like(self._flat(number))
                    slots[key].view(-1)[place] = self.cut(value, number).to(slots[key])
        self._link()

    @abstractmethod
    def _flat(self, number: int) -> Tensor:
        """The flat tensor that the optimiser steps and a weight's fragment lies in."""

    def _link(self) -> None:
        """Called after optimiser states were made: in most layouts there is nothing to do."""
        return

    def _kinds(self) -> dict[str, bool]:
        """What the optimiser keeps, and whether it is a single number; asked of all processes: some own no weight."""
        slots = [item for state in self.inner.state.values() for item in state.items() if item[1] is not None]
        own = {key: self._single(value) for key, value in slots}
        return dict(sorted({key: single for part in distributed.gather(own) for key, single in part.items()}.items()))

    @staticmethod
    def _single(value: Any) -> bool:
        return isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0)


class Replicated(Partition):
    """Stage 0: every process holds every weight."""

    shared = False

    def __init__(self, engine: Any, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(engine, parameters)
        masters = {}
        for working, master in zip(
            getattr(self.zero, "fp16_groups", ()), getattr(self.zero, "fp32_groups", ()), strict=True
        ):
            masters |= {id(a): b for a, b in zip(working, master, strict=True)}
        self.masters = [masters.get(id(parameter), parameter) for parameter in self.parameters]

    def shape(self, number: int) -> torch.Size:
        return self.parameters[number].shape

    def start(self, number: int) -> int:
        return 0

    def master(self, number: int) -> Tensor:
        return self.masters[number].data.view(-1)

    def gradient(self, number: int) -> Tensor:
        parameter = self.parameters[number]
        if parameter.grad is None:
            return torch.zeros_like(self.master(number))
        averaged = parameter.grad.detach().float().flatten().clone()
        dist.all_reduce(averaged)  # DeepSpeed does it when the step is made
        return averaged / dist.get_world_size()

    def working(self, number: int) -> Tensor:
        return self.parameters[number].data

    def put(self, number: int, fragment: Tensor) -> None:
        self.parameters[number].data.copy_(fragment.view(self.shape(number)))

    def _flat(self, number: int) -> Tensor:
        return self.masters[number]

    def _slots(self, number: int) -> tuple[Slots, slice]:
        return self.inner.state[self.masters[number]], slice(0, self.shape(number).numel())


class FlatGroups(Partition):
    """Stages 1 and 2: the weights of a parameter group in a row, of which every process owns a stretch."""

    def _mapping(self, number: int) -> Any:
        return getattr(self.parameters[number], "_hp_mapping", None)

    def shape(self, number: int) -> torch.Size:
        return self.parameters[number].shape

    def start(self, number: int) -> int:
        mapping = self._mapping(number)
        return 0 if mapping is None else mapping.lp_fragment_address.start

    def master(self, number: int) -> Tensor:
        mapping = self._mapping(number)
        return self._nothing(number) if mapping is None else mapping.hp_fragment

    def _nothing(self, number: int) -> Tensor:
        return torch.zeros(0, device=self.parameters[number].device)

    def gradient(self, number: int) -> Tensor:
        parameter = self.parameters[number]
        if self.engine.zero_optimization_partition_gradients():
            return self._parted_gradient(parameter, number)
        averaged = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
        averaged = averaged.float()
        dist.all_reduce(averaged)  # stage 1 does it when the step is made
        return self.cut(averaged / dist.get_world_size(), number)

    def _parted_gradient(self, parameter: nn.Parameter, number: int) -> Tensor:
        """Stage 2 averages after every pass, and keeps of a weight what its owner needs right."""
        mapping = self._mapping(number)
        if mapping is None:
            return self._nothing(number)
        if mapping.use_offload:
            raise UserError("gradients cannot be compared with offload_optimizer; set gradient_every to 0")
        kept = self.zero.all_grad_tensors.get(mapping.param_group_index)
        if kept is None:
            return torch.zeros_like(self.master(number))
        owned = self.zero.params_in_partition[mapping.param_group_index]
        place = next(at for at, other in enumerate(owned) if other is parameter)
        return self.cut(kept[place], number).float().clone()

    def working(self, number: int) -> Tensor:
        return self.parameters[number].data

    def put(self, number: int, fragment: Tensor) -> None:
        self.parameters[number].data.copy_(self.whole(fragment, number))

    def _flat(self, number: int) -> Tensor:
        return self.zero.single_partition_of_fp32_groups[self._mapping(number).param_group_index]

    def _slots(self, number: int) -> tuple[Slots, slice]:
        mapping = self._mapping(number)
        if mapping is None:
            return {}, slice(0, 0)
        address = mapping.hp_fragment_address
        return self.inner.state[self._flat(number)], slice(address.start, address.start + address.numel)

    def _link(self) -> None:
        self.zero._lazy_init_hp_params_optimizer_state()


class ShardedWeights(Partition):
    """Stage 3: of every weight every process owns an equal stretch, the last ones perhaps less."""

    def _weight(self, number: int) -> Any:
        return self.parameters[number]  # with what DeepSpeed hangs on it: ds_shape, ds_tensor

    def shape(self, number: int) -> torch.Size:
        return self._weight(number).ds_shape

    def start(self, number: int) -> int:
        stretch = self._weight(number).ds_tensor.numel()
        return min(dist.get_rank() * stretch, self.shape(number).numel())

    def _own(self, number: int) -> int:
        """Length of the fragment. DeepSpeed's own stretch may be longer, and the rest of it hold anything."""
        return min(self._weight(number).ds_tensor.numel(), self.shape(number).numel() - self.start(number))

    def _place(self, number: int) -> tuple[int, int]:
        group, offset, _ = self.zero.grad_position[self.zero.get_param_id(self.parameters[number])]
        return group, offset

    def master(self, number: int) -> Tensor:
        offset = self._place(number)[1]
        return self._flat(number).data[offset : offset + self._own(number)]

    def gradient(self, number: int) -> Tensor:
        return self.zero.get_local_fp32_grad_for_param(self.parameters[number])[: self._own(number)].clone()

    def working(self, number: int) -> Tensor:
        return self._weight(number).ds_tensor.data[: self._own(number)]

    def put(self, number: int, fragment: Tensor) -> None:
        self.zero.parameter_offload.empty_partition_cache()  # else what a forward pass has gathered would be used on
        parameter = self._weight(number)
        self.working(number).copy_(fragment)
        if parameter.data.numel() == parameter.ds_numel:  # small weights stay gathered
            parameter.data.copy_(self.whole(fragment, number))

    def restore(self, number: int, data: Tensor) -> None:
        self.put(number, data)

    def _flat(self, number: int) -> Tensor:
        return self.zero.fp32_partitioned_groups_flat[self._place(number)[0]]

    def _slots(self, number: int) -> tuple[Slots, slice]:
        offset = self._place(number)[1]
        return self.inner.state[self._flat(number)], slice(offset, offset + self._own(number))


def partition(engine: Any, parameters: dict[str, nn.Parameter]) -> Partition:
    """The layout of an engine's stage."""
    stage = engine.zero_optimization_stage()
    return (Replicated, FlatGroups, FlatGroups, ShardedWeights)[stage](engine, parameters)
