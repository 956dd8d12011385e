"""Stages as a YAML file has them, their rows, and what a refusal looks like."""

import json

SETTINGS = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64}
SCRATCH = {"class_path": "FromScratch", "init_args": {"config": SETTINGS, "vocab_size": 258}}
ROWS = [{"prompt": f"{letter}=", "response": "xyz"} for letter in "abcdefghij"]
PAIRS = [{"prompt": f"{letter}=", "chosen": "xyz", "rejected": "XYZ"} for letter in "abcdefghij"]


def data(path, **settings):
    source = {"class_path": "Files", "init_args": {"path": str(path)}}
    return {"sources": {"rows": source}, "eval_rows": 2, "max_tokens": 32, **settings}


def sft(path="rows.jsonl", policy=SCRATCH, limits=None, **settings):
    return {
        "class_path": "SFT",
        "init_args": {"policy": policy, "data": data(path, **limits or {}), "steps": 2, **settings},
    }


def pretrained(path):
    return {"class_path": "Pretrained", "init_args": {"path": str(path)}}


def ppo(path="rows.jsonl", reward="tiny_runs.letters", policy=SCRATCH, limits=None, **settings):
    usual = {"sampling": {"max_new_tokens": 4}, "batch_size": 4, "mini_batch_size": 4, "iterations": 1}
    function = (
        {"class_path": "FunctionReward", "init_args": {"function": reward}} if isinstance(reward, str) else reward
    )
    needed = {"policy": policy, "reward": function, "data": data(path, **limits or {})}
    return {"class_path": "PPO", "init_args": {**needed, **usual, **settings}}


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def text(letter, length):
    return letter * length


def refused(answer, code, *parts):
    assert answer[0] == code
    for part in parts:
        assert part in answer[1]
    assert "Traceback" not in answer[1]
