"""Contract tests for whoever writes a component: what the parts of this package pass, yours should pass too.

In a test of yours::

    from rlhf.testing import check_component

    def test_contract():
        check_component(ClippedReturns, limit=2.5)
"""

from __future__ import annotations

from typing import Any

from rlhf.errors import UserError
from rlhf.registry import REGISTRIES
from rlhf.testing.contract import BrokenContract as BrokenContract, Contract


def check_component(cls: type, **settings: Any) -> None:
    """Makes a component and checks that it keeps the contract of its kind, as ``rlhf.interfaces`` has it.

    Every component: a frozen, keyword-only dataclass; every setting in the ``Args:`` of the docstring and none besides;
    equal settings give equal objects and texts; pickled, or printed as ``--print_config`` does and read again, it is
    the same. And by kind:

    * ``AdvantageEstimator``, ``PolicyLoss``, ``SamplerCorrection``: padding and what pads hold (NaN), the order of rows
      and, of losses, the cut into micro-batches change nothing; masked slots are exactly 0, of losses in the gradient
      too; arguments are not written to; one-token rows, constant groups and advantages of 0 give finite numbers.
      Estimators read only what their ``needs_…`` ask for.
    * ``RolloutFilter``: a choice of rows that does not depend on their order.
    * ``KLController``: finite, never negative; the state continues in the middle, exactly.
    * ``WeightAverage``: fp32 shards of the weights' shapes that are copies; weights parted otherwise give the same; the
      state continues in the middle.
    * ``Schedule``: a finite factor, not negative, at every step from 0 to the total.
    * ``Optimizer``: every parameter is in one group and is moved by a step; the state continues in the middle.
    * ``ValueHead``: [..., width] of any precision to [...] in fp32, and every weight of it learns.
    * ``Template``: a prompt has the same ids alone and in a conversation; a response ends in exactly one end id; what
      is encoded comes back by ``bare``.
    * ``Blender``: the same seed gives the same order, others another; indices are in range. The sources are called
      ``a`` (7 rows) and ``b`` (20 rows).
    * ``Source``: the same rows each time, with columns that some form is made of.
    * ``RewardModel``, if it runs no model of its own: finite scores of each response by itself, whatever stands beside
      it. The prompts have a column ``answer`` of numbers.

    Args:
        cls: The class.
        **settings: Settings to make it with; those without a default are needed.

    Raises:
        BrokenContract: it does not keep its contract; the text says which part, with the numbers.
        UserError: it is no component, or refuses the settings.
    """
    if not isinstance(cls, type):
        raise UserError(
            f"{cls!r} is no class; give the class, and its settings by name: check_component(Mine, limit=2)"
        )
    bases = [registry.base for registry in REGISTRIES.values() if issubclass(cls, registry.base)]
    if not bases:
        raise UserError(f"{cls.__name__} is no component: it derives from no base class of rlhf.interfaces")
    from rlhf.testing import general, kinds

    contract = Contract(cls.__name__)
    general.check_class(contract, cls)
    component = cls(**settings)
    general.check_object(contract, component, lambda: cls(**settings), bases[0])
    for base, check in kinds.CHECKS.items():
        if isinstance(component, base):
            check(contract, component)
