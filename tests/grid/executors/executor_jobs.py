"""Commands that stand for cells, and how what became of them is awaited."""

import time

from rlhf.interfaces import Job

SECONDS = 240
"""For jobs, on a busy machine."""
STOPPABLE = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
CONTINUED = """
import pathlib, signal, sys, time
at = pathlib.Path("continued")
if at.exists():
    print("continues", flush=True)
    sys.exit(0)
def save(*_):
    at.touch()
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
"""Saves when it is asked to, and ends well when it is run again; in its working directory."""


def job(folder, code, name="a"):
    """A command in the place of a cell's, with a folder of its own."""
    log = folder / "g" / name / "output.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return Job(name, ["-c", code], log)


def said(one):
    """What a job has said so far."""
    return one.log.read_text() if one.log.exists() else ""


def until(condition, every=0.05):
    """Waits for something; what it is."""
    end = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(every)
    return found


def ended(live, count=1):
    """The next jobs that end, by name."""
    found = []

    def enough():
        found.extend(live.ended())
        return len(found) >= count

    until(enough)
    return {one.name: one for one in found}
