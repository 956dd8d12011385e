"""Jobs of a Slurm cluster, of one that does what each test says."""

import json
import signal

import pytest
from executor_jobs import ended, job

from rlhf.errors import UserError
from rlhf.grid.executors import slurm, slurm_queue
from rlhf.grid.executors.slurm import Jobs, Slurm
from rlhf.interfaces import Ended

pytestmark = pytest.mark.usefixtures("shorter_waits")


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"at_once": 0}, "at_once is 0; must be at least 1"),
        ({"threads": 0}, "threads is 0; must be at least 1"),
        ({"gpus": -1}, "gpus is -1; must be at least 0"),
        ({"time_limit": 1, "save_seconds": 60}, "save_seconds is 60; must be at least 1 and below 60"),
        ({"memory_gb": 0.0}, "memory_gb is 0.0; must be above 0"),
        ({"sbatch": {"cpus_per_task": 2}}, "sbatch.cpus_per_task is given; set threads"),
        ({"sbatch": {"job-name": "x"}}, "sbatch.job-name is given; leave it out, as the executor sets it"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(UserError, match=f"^{text}"):
        Slurm(**settings)


def test_a_missing_package_or_program_is_told_before_anything_runs(monkeypatch):
    monkeypatch.setattr(slurm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^Slurm: the package submitit is missing; pip install 'rlhf\[slurm\]'$"):
        Slurm().open()
    monkeypatch.setattr(slurm.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None if name == "sbatch" else name)
    with pytest.raises(UserError, match=r"^Slurm: sbatch is not on the PATH; start the grid on a machine that submits"):
        Slurm().open()


def test_settings_come_into_the_batch_script(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    settings = Slurm(
        at_once=3, threads=4, gpus=1, partition="fast", time_limit=30, memory_gb=1.5, setup=["module load cuda"],
        sbatch={"account": "us", "mail_type": "END"},
    )  # fmt: skip
    assert settings.slots == 3
    assert settings.describe() == "threads of each: 4; GPUs of each: 1; partition fast; up to 30 minutes, and again"
    executor = slurm.submitter(tmp_path, settings)
    executor.update_parameters(**settings.parameters("rlhf-g-1"))
    text = executor._make_submission_file_text(executor._submitit_command_str, "x")
    options = set(text.split("#SBATCH ", 1)[1].replace("#SBATCH ", "").splitlines())
    assert options >= {
        "--job-name=rlhf-g-1", "--partition=fast", "--time=30", "--cpus-per-task=4", "--gpus-per-node=1",
        "--mem=1536M", "--signal=B:USR2@120", "--requeue", "--account=us", "--mail-type=END", "--open-mode=append",
    }  # fmt: skip
    assert text.index("module load cuda") < text.index("\nexec ") and "\nsrun" not in text
    bare = Slurm(threads=None).parameters("n")
    assert not bare.keys() & {"cpus_per_task", "gpus_per_node", "mem", "partition", "setup"}


# ------------------------------------------------------------------------------------------------- a pretended cluster


class Queue:
    """Stands for Slurm's own programs: jobs are in the states that a test gives them."""

    def __init__(self):
        self.jobs: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.told: list[tuple[str, ...]] = []
        self.silent = False

    def states(self, jobs):
        if self.silent:
            raise UserError("Slurm: squeue does not answer")
        return {job: state for job, state in self.jobs.items() if job in jobs}

    def named(self, names):
        return {name: {slurm_queue.index(job): job for job, own in self.names.items() if own == name} for name in names}

    def recorded(self, jobs):
        return {}

    def cancel(self, jobs, *options):
        if jobs:
            self.told.append((*options, *sorted(jobs)))


@pytest.fixture
def queue(monkeypatch):
    found = Queue()
    for name in ("states", "named", "recorded", "cancel"):
        monkeypatch.setattr(slurm_queue, name, getattr(found, name))
    return found


class Submitter:
    """Stands for submitit: numbers the jobs, and runs none."""

    refusal = ""
    count = 0

    def __init__(self, queue, folder):
        self.queue, self.folder = queue, folder

    def update_parameters(self, **parameters):
        self.name = parameters["job_name"]

    def batch(self):
        return self

    def __enter__(self):
        self.jobs = []

    def __exit__(self, *error):
        if Submitter.refusal:
            raise RuntimeError(Submitter.refusal)
        Submitter.count += 1
        for index, one in enumerate(self.jobs):
            one.job_id = f"{Submitter.count}_{index}" if len(self.jobs) > 1 else f"{Submitter.count}"
            self.queue.jobs[one.job_id], self.queue.names[one.job_id] = "PENDING", self.name
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{one.job_id}_submitted.pkl").touch()

    def submit(self, cell):
        self.jobs.append(type("Job", (), {"cell": cell})())
        return self.jobs[-1]


@pytest.fixture
def pretended(queue, monkeypatch):
    """Jobs of a cluster that does what the test says."""
    pytest.importorskip("submitit")
    monkeypatch.setattr(slurm, "submitter", lambda folder, settings: Submitter(queue, folder))
    monkeypatch.setattr(Submitter, "refusal", "")
    monkeypatch.setattr(Submitter, "count", 0)
    return lambda **settings: Jobs(Slurm(**settings))


def leave(tmp_path, id_, result):
    """The result of a job, as submitit leaves it."""
    from submitit.core.utils import cloudpickle_dump

    (submitted,) = tmp_path.glob(f"g/.slurm/*/{id_}_submitted.pkl")
    cloudpickle_dump(result, submitted.with_name(f"{id_}_0_result.pkl"))


def record(one):
    return json.loads((one.log.parent / slurm.RECORD).read_text())


def test_what_is_ready_together_is_one_array(pretended, queue, tmp_path):
    live = pretended()
    for name in "ab":
        live.start(job(tmp_path, "", name))
    assert queue.jobs == {} and live.ended() == []
    live.flush()
    live.start(job(tmp_path, "", "c"))
    live.flush()
    live.flush()
    assert list(queue.jobs) == ["1_0", "1_1", "2"]
    assert record(job(tmp_path, "", "b")) == {
        "name": queue.names["1_1"], "index": 1, "job": "1_1", "folder": str(tmp_path / "g/.slurm" / queue.names["1_1"]),
    }  # fmt: skip
    assert queue.names["2"].startswith("rlhf-g-")


def test_a_result_is_the_end_except_where_it_was_asked_for(pretended, queue, tmp_path):
    live = pretended()
    jobs = {name: job(tmp_path, "", name) for name in "abc"}
    for one in jobs.values():
        live.start(one)
    live.flush()
    leave(tmp_path, "1_0", ("success", (0, "")))
    leave(tmp_path, "1_1", ("success", (143, "")))  # it has saved: Slurm knows whether to run it again
    leave(tmp_path, "1_2", ("error", "Traceback …\nOSError: no such folder\n"))
    found = ended(live, 2)
    assert found == {
        "a": Ended("a", 0),
        "c": Ended("c", 1, "Slurm job 1_2 could not run it: OSError: no such folder"),
    }
    assert not (jobs["a"].log.parent / slurm.RECORD).exists()
    queue.jobs["1_1"] = "PENDING"
    live._lost = {"b": -1000.0}  # it was over at the last look
    live._listed = live._looked = float("-inf")
    assert live.ended() == [] and live._lost == {}
    queue.jobs["1_1"] = "CANCELLED"
    assert ended(live) == {"b": Ended("b", -signal.SIGTERM, "Slurm job 1_1 was cancelled")}


@pytest.mark.parametrize(
    ("state", "code", "why"),
    [
        ("CANCELLED", -signal.SIGTERM, "Slurm job 1 was cancelled"),
        ("TIMEOUT", -signal.SIGTERM, "Slurm job 1 came to its time limit"),
        ("PREEMPTED", -signal.SIGTERM, "Slurm job 1 had to give way to another job"),
        ("OUT_OF_MEMORY", -signal.SIGKILL, "Slurm job 1 needs more memory; raise executor.memory_gb"),
        ("FAILED", 1, "Slurm job 1 has ended without a result, FAILED; {}/1_0_log.out may tell why"),
        (None, 1, "Slurm job 1 has ended without a result; {}/1_0_log.out may tell why"),
    ],
)
def test_a_job_without_a_result_is_judged_by_its_last_state(pretended, queue, tmp_path, state, code, why):
    live = pretended()
    live.start(job(tmp_path, ""))
    live.flush()
    queue.silent = True
    live._listed = live._looked = float("-inf")
    assert live.ended() == []  # no answer is no end
    queue.silent = False
    queue.jobs.update({"1": state}) if state else queue.jobs.clear()
    assert ended(live) == {"a": Ended("a", code, why.format(tmp_path / "g/.slurm" / queue.names["1"]))}


def test_accounts_tell_what_slurm_has_forgotten(pretended, queue, tmp_path, monkeypatch):
    live = pretended()
    live.start(job(tmp_path, ""))
    live.flush()
    queue.jobs.clear()
    monkeypatch.setattr(slurm_queue, "recorded", lambda jobs: dict.fromkeys(jobs, "TIMEOUT"))
    assert ended(live)["a"].why == "Slurm job 1 came to its time limit"


def test_a_refusal_is_an_error_unless_there_is_something_to_wait_for(pretended, queue, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "AGAIN", 0.0)
    live = pretended()
    live.start(job(tmp_path, "", "a"))
    live.flush()
    monkeypatch.setattr(Submitter, "refusal", "sbatch: error: too many jobs")
    live.start(job(tmp_path, "", "b"))
    live.flush()
    assert [one.name for one in live.waiting] == ["b"] and not (tmp_path / "g/b" / slurm.RECORD).exists()
    monkeypatch.setattr(Submitter, "refusal", "")
    live.flush()
    assert list(queue.jobs) == ["1", "2"]
    monkeypatch.setattr(Submitter, "refusal", "sbatch: error: no such account")
    other = pretended()
    other.start(job(tmp_path, "", "c"))
    with pytest.raises(UserError, match=r"^Slurm refuses the jobs: sbatch: error: no such account\nMend the settings"):
        other.flush()
    other.stop()
    assert other.ended() == [Ended("c", -signal.SIGTERM, "it was not submitted yet")]


def test_an_answer_that_was_lost_is_no_refusal(pretended, queue, tmp_path, monkeypatch):
    whole = Submitter.__exit__

    def lost(self, *error):
        whole(self, *error)
        (self.folder / "1_submitted.pkl").unlink()
        raise RuntimeError("sbatch: error: Socket timed out")

    monkeypatch.setattr(Submitter, "__exit__", lost)
    live = pretended()
    live.start(job(tmp_path, "1"))
    live.flush()
    assert live.running["a"].id == "1" and list(queue.jobs) == ["1"]
    # without it the job would wait for it, and fail
    assert (tmp_path / "g/.slurm" / queue.names["1"] / "1_submitted.pkl").exists()


def test_a_later_grid_finds_the_jobs_of_a_former_one(pretended, queue, tmp_path):
    jobs = {name: job(tmp_path, "1", name) for name in "abcd"}
    former = pretended(time_limit=7)
    for name in "abc":
        former.start(jobs[name])
    former.flush()
    # of the second it was killed before it knew the id; the third has ended meanwhile
    note = record(jobs["b"])
    (jobs["b"].log.parent / slurm.RECORD).write_text(json.dumps({**note, "job": None}))
    submitted = tmp_path / "g/.slurm" / note["name"] / "1_1_submitted.pkl"
    submitted.unlink()
    queue.jobs.update({"1_0": "RUNNING", "1_2": "COMPLETED"})
    live = pretended()
    assert live.adopt(list(jobs.values())) == {"a": "Slurm job 1_0", "b": "Slurm job 1_1"}
    assert record(jobs["b"]) == note and not (jobs["c"].log.parent / slurm.RECORD).exists()
    from submitit.helpers import DelayedSubmission

    left = DelayedSubmission.load(submitted)
    assert left.function.arguments == ["-c", "1"] and left._timeout_countdown == 100
    leave(tmp_path, "1_0", ("success", (0, "")))
    assert ended(live) == {"a": Ended("a", 0)}


def test_a_submission_that_was_never_made_is_forgotten(pretended, queue, tmp_path):
    one = job(tmp_path, "")
    slurm._note(one, name="rlhf-g-0", index=0, job=None, folder=str(tmp_path))
    assert pretended().adopt([one]) == {} and not (one.log.parent / slurm.RECORD).exists()
    (one.log.parent / slurm.RECORD).write_text("{")
    assert pretended().adopt([one]) == {}


def test_no_answer_at_the_start_is_an_error(pretended, queue, tmp_path):
    one = job(tmp_path, "")
    slurm._note(one, name="rlhf-g-0", index=0, job="5", folder=str(tmp_path))
    queue.silent = True
    with pytest.raises(UserError, match="squeue does not answer"):
        pretended().adopt([one])
    assert (one.log.parent / slurm.RECORD).exists()


def test_jobs_are_asked_to_stop_and_those_that_wait_are_cancelled(pretended, queue, tmp_path):
    live = pretended()
    for name in "ab":
        live.start(job(tmp_path, "", name))
    live.flush()
    live.start(job(tmp_path, "", "c"))
    live.stop()
    assert queue.told == [("--state=PENDING", "1_0", "1_1"), ("--batch", "--signal=USR1", "1_0", "1_1")]
    leave(tmp_path, "1_0", ("success", (143, "")))
    queue.jobs["1_1"] = "CANCELLED"
    found = ended(live, 3)
    assert {name: one.code for name, one in found.items()} == {"a": 143, "b": -15, "c": -15}
    assert queue.told[2] == ("1_0",)  # in case it was about to be run again
