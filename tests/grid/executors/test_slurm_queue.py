"""What Slurm's programs answer, and how it is read."""

import pytest

from rlhf.errors import UserError
from rlhf.grid.executors import slurm_queue


@pytest.fixture
def says(monkeypatch):
    """What Slurm's programs answer: code, output, error."""
    answers = {}
    monkeypatch.setattr(slurm_queue, "_said", lambda program, *_: answers[program])
    return answers


def test_states_are_read_from_squeue(says):
    says["squeue"] = (0, "7_0|RUNNING|rlhf-g-1\n7_1|PENDING|rlhf-g-1\n8|CANCELLED|x|y\n", "")
    assert slurm_queue.states({"7_1", "8", "9"}) == {"7_1": "PENDING", "8": "CANCELLED"}
    assert slurm_queue.named(["rlhf-g-1"]) == {"rlhf-g-1": {0: "7_0", 1: "7_1"}}
    says["squeue"] = (1, "", "slurm_load_jobs error: Invalid job id specified")
    assert slurm_queue.states({"9"}) == {} and slurm_queue.states(set()) == {} and slurm_queue.named([]) == {}
    says["squeue"] = (1, "", "slurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(UserError, match=r"^Slurm: squeue does not answer .*contact slurm controller.; try again later"):
        slurm_queue.states({"9"})


def test_last_states_are_read_from_accounts_where_there_are_any(says):
    says["sacct"] = (0, "7_0|CANCELLED by 0\n7_1|COMPLETED\n", "")
    assert slurm_queue.recorded({"7_0"}) == {"7_0": "CANCELLED"}
    says["sacct"] = (1, "", "Slurm accounting storage is disabled")
    assert slurm_queue.recorded({"7_0"}) == {}


def test_a_program_that_is_not_there_or_hangs_is_no_answer(monkeypatch):
    monkeypatch.setattr(slurm_queue, "SECONDS", 0.2)
    assert slurm_queue._said("no-such-program")[0] == 127
    assert slurm_queue._said("sleep", "5") == (124, "", "nothing in 0.2 s")
