"""What preparing a large file costs: memory, speed, and what a kill in the middle loses.

    python benchmarks/prepare_data.py --megabytes 1000

Makes a JSONL of that size (prompts and responses of the built-in world, every prompt numbered so that all differ) and a
BPE tokenizer, and prepares the file for supervised fine-tuning in processes of its own: once undisturbed, once again to
find it in the cache, and once killed half-way and started again. Prints a Markdown table; peak memory is that of the
whole process, libraries included. What a kill loses is the shards made twice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import resource
import shutil
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

SHARD_MEGABYTES = 8


class Outcome(NamedTuple):
    """One preparation: seconds, peak memory in GB, and the line that says what was done."""

    seconds: float
    gigabytes: float
    origin: str


def make_file(path: Path, megabytes: float) -> int:
    """Writes rows until the file has that size; answers how many."""
    from rlhf.data import world

    rows = itertools.cycle(list(world.demonstrations(20_000, seed=1)))
    number = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            lines = []
            for row in itertools.islice(rows, 1000):
                prompt = f"Customer {number}. {row['prompt']}"
                lines.append(json.dumps({"prompt": prompt, "response": row["response"]}) + "\n")
                number += 1
            file.writelines(lines)
    return number


def make_tokenizer(folder: Path) -> None:
    """Trains a tokenizer on the language of the file."""
    from rlhf.data import world
    from rlhf.models.tokenizer import train_bpe

    train_bpe((row["response"] for row in world.demonstrations(5000, seed=2)), 2000).save_pretrained(folder)


def prepare(file: Path, tokenizer: Path, cache: Path, shard_megabytes: float, answers: Any) -> None:
    """The work of a child process."""
    from transformers import AutoTokenizer

    from rlhf.data import preparation
    from rlhf.data.dataset import Data
    from rlhf.data.sources import Files

    preparation.SHARD_BYTES = int(shard_megabytes * 2**20)
    data = Data(sources={"file": Files(path=str(file))}, eval_rows=100)
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    start = time.perf_counter()
    prepared = data.prepare(loaded, form="demonstration", phase="sft", cache_dir=str(cache))
    seconds = time.perf_counter() - start
    assert sum(example.length for example in itertools.islice(prepared.train, 1000)) > 0
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    answers.put((seconds, peak * 1024 / 1e9, prepared.origin))


def finish(child: Any, answers: Any) -> Outcome:
    """What a child says when it has ended well."""
    while answers.empty() and child.is_alive():
        time.sleep(0.05)
    child.join()
    if child.exitcode:
        raise SystemExit(f"the preparation ended with {child.exitcode}")
    return Outcome(*answers.get())


def finished_shards(cache: Path) -> int:
    """Shards of a preparation that is under way."""
    return len(list(cache.glob(".*.partial/[0-9]*.arrow")))


def kill_at(child: Any, cache: Path, shards: int) -> int:
    """Kills a child when so many shards are finished; answers how many there are."""
    while finished_shards(cache) < shards:
        if not child.is_alive():
            raise SystemExit("the preparation ended before it could be killed; use a larger file")
        time.sleep(0.005)
    child.kill()
    child.join()
    return finished_shards(cache)


def measure(megabytes: float, folder: Path, shard_megabytes: float = SHARD_MEGABYTES) -> list[str]:
    """The table's lines."""
    file, tokenizer, cache = folder / "rows.jsonl", folder / "tokenizer", folder / "cache"
    processes = get_context("fork")  # of a process that has done nothing yet: each starts with the libraries alone
    answers: Any = processes.SimpleQueue()
    rows = make_file(file, megabytes)
    maker = processes.Process(target=make_tokenizer, args=(tokenizer,))
    maker.start()
    maker.join()
    size = file.stat().st_size / 1e6

    def child(into: Path) -> Any:
        process = processes.Process(target=prepare, args=(file, tokenizer, into, shard_megabytes, answers))
        process.start()
        return process

    whole = finish(child(cache), answers)
    again = finish(child(cache), answers)
    shards = len(list(cache.glob("*/*.arrow")))
    killed = folder / "killed"
    left = kill_at(child(killed), killed, max(shards // 2, 1))
    resumed = finish(child(killed), answers)
    found = re.search(r"\((\d+) shards were there", resumed.origin)
    lines = [
        f"{size:.0f} MB, {rows} rows, {shards} shards",
        "",
        "| run | seconds | MB/s | peak memory (GB) |",
        "|---|---|---|---|",
    ]
    for name, run in (("cold", whole), ("again", again), ("after a kill", resumed)):
        lines.append(f"| {name} | {run.seconds:.1f} | {size / run.seconds:.1f} | {run.gigabytes:.2f} |")
    kept = int(found[1]) if found else 0
    lines += ["", f"killed behind shard {left} of {shards}: {kept} were kept, {shards - kept} made afterwards"]
    if "before" not in again.origin or kept < left:
        raise SystemExit("\n".join([*lines, "finished work was done again"]))
    return lines


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000, help="size of the file")
    parser.add_argument("--shard_megabytes", type=float, default=SHARD_MEGABYTES, help="rows of a shard")
    parser.add_argument("--folder", help="where to work; needs some four times the file's size")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="prepare-data-", dir=arguments.folder))
    try:
        print("\n".join(measure(arguments.megabytes, folder, arguments.shard_megabytes)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
