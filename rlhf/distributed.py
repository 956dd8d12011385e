"""The processes of a run: how many there are, which one this is, and what they agree on.

Every process runs the same loops on the same data and comes to the same numbers; only engines divide work. So one
process alone (:func:`is_main`) writes files and speaks. Without a launcher there is one process, and nothing to agree
on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
"""How long processes wait for one another, such as for the one that prepares the data, before they give up."""


def launched() -> int:
    """How many processes a launcher (torchrun, deepspeed, Slurm with torch's variables) has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def device() -> torch.device:
    """What this process computes on: a GPU of its own where there are any, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def backend() -> str:
    """How tensors travel between processes, by where they lie."""
    return "cpu:gloo,cuda:nccl" if device().type == "cuda" else "gloo"


def _active() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def start() -> None:
    """Connects the processes of a launcher; does nothing where there is none, or where they are connected already.

    Raises:
        ValueError: the launcher's variables are not whole.
    """
    if launched() == 1 or _active():
        return
    import torch
    import torch.distributed as dist

    if device().type == "cuda":
        torch.cuda.set_device(device())
    dist.init_process_group(backend(), timeout=TIMEOUT)
    if not is_main():  # what they warn of, such as a wait for another process's data, the main one meets too
        logging.getLogger("rlhf").setLevel(logging.ERROR)


def stop() -> None:
    """Parts the processes, once all are here: one that leaves early may end the others with an error."""
    import torch.distributed as dist

    if _active() and launched() > 1:
        dist.barrier()
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, from 0."""
    import torch.distributed as dist

    return dist.get_rank() if _active() else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Number of processes."""
    import torch.distributed as dist

    return dist.get_world_size() if _active() else launched()


def is_main() -> bool:
    """Whether this is the process that writes files and speaks."""
    return rank() == 0


def barrier() -> None:
    """Waits until every process is here."""
    import torch.distributed as dist

    if _active() and world_size() > 1:
        dist.barrier()


def broadcast(value: T) -> T:
    """What the main process has, on all."""
    return gather(value)[0]


def gather(value: T) -> list[T]:
    """What each process has, in order, on all of them. For small objects: they are pickled."""
    import torch.distributed as dist

    if not _active() or world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


def total(value: float) -> float:
    """The sum of a number over all processes, which wait for one another."""
    if not _active() or world_size() == 1:
        return value
    import torch
    import torch.distributed as dist

    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found)
    return float(found)


def first_to_fail() -> bool:
    """Whether no other process has asked this before: its error is the cause, those of the others may follow from it.

    While the processes are not connected they ask torchrun, which is there before them. Under other launchers the main
    process is meant to speak, as all do the same then.
    """
    if launched() == 1:
        return True
    from torch.distributed import distributed_c10d
    from torch.distributed.rendezvous import rendezvous

    try:
        if _active():
            store = distributed_c10d._get_default_store()
        elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = next(rendezvous("env://", timeout=timedelta(seconds=10)))[0]
        else:
            return is_main()
        return store.add("rlhf/failures", 1) == 1
    except Exception:  # the process that keeps the store has left already, and so has spoken
        return False


def lost_another(error: BaseException) -> bool:
    """Whether an error says no more than that another process has gone, such as one that the system has killed."""
    return launched() > 1 and any(
        text in str(error) for text in ("Connection closed by peer", "Connection reset by peer")
    )


def once(make: Callable[[], T]) -> T:
    """What ``make`` answers on the main process, on all; an error there is raised on all.

    Args:
        make: Called by one process only: for what is costly, answers differently each time, or touches the world.
    """
    if world_size() == 1:
        return make()
    answer, error = None, None
    if is_main():
        try:
            answer = make()
        except Exception as raised:
            error = raised
    answer, error = broadcast((answer, error))
    if error is not None:
        raise error
    return answer  # pyright: ignore[reportReturnType]
