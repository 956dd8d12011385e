"""Components that break one contract each, and one that breaks none: what ``rlhf.testing`` has to catch.

Their names begin with an underscore so that no registry lists them: other tests run in the same process.
"""

from faulty import anything, built, data, estimators, losses
from faulty.parts import _Good, lengths, rows, step_lengths

CAUGHT = [*anything.CAUGHT, *estimators.CAUGHT, *losses.CAUGHT, *built.CAUGHT, *data.CAUGHT]
"""Each with what its message begins with."""

__all__ = ["CAUGHT", "_Good", "lengths", "rows", "step_lengths"]
