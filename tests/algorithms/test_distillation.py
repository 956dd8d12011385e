"""Distillation from a teacher on the student's own samples."""

import pytest
import tiny_runs
import torch
from objectives import OLD, slope

from rlhf.algorithms.distillation import OnPolicyDistillation

TEACHER = tiny_runs.policy()


def test_each_token_is_judged_by_the_teacher_alone():
    # A = log teacher − log student: 0.5 | −1, 0; no token sees another's; 3 tokens, the score of 1 counts nothing
    teacher = OLD + torch.tensor([[0.5, 0.0], [-1.0, 0.0]])
    settings = tiny_runs.ppo(OnPolicyDistillation, reference=TEACHER, reward=tiny_runs.LETTERS)
    silent = slope(settings, coef=1.0, reference=teacher)
    assert silent[1:] == pytest.approx([1 / 3, 0])
    assert silent[0] == pytest.approx(-(0.5 + 1) / 3)  # a reward that is given does count, at the last token


def test_the_teacher_must_be_given():
    with pytest.raises(TypeError, match="reference"):
        OnPolicyDistillation(policy=TEACHER, data=tiny_runs.data("prompt"))  # pyright: ignore[reportCallIssue]


def test_the_kl_to_the_teacher_must_be_there():
    (problem,) = tiny_runs.ppo(OnPolicyDistillation, reference=TEACHER, kl=None).check()
    assert problem.startswith("kl: is null, but the KL to the teacher")
