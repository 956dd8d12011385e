"""Variants beside each other: settings, answers, oddities and cost."""

import json

import finished
import pytest
import run_folders

from rlhf.grid.report.beside import PROMPTS, answers, cost, oddities, varying
from rlhf.grid.report.results import collect


def collected(grid, cells, without=()):
    return collect(grid, cells, [cell.name for cell in cells if cell.name not in without])


def test_only_the_settings_that_vary_are_told(tmp_path):
    _, cells = finished.grid(tmp_path)
    assert varying(cells) == [("stages.ppo.score_clip", ["1.0", "null"])]
    _, cells = finished.grid(tmp_path, axes={})
    assert varying(cells) == []


def test_answers_are_of_one_seed_and_the_same_prompts(tmp_path):
    grid, cells = finished.whole(tmp_path)
    seed, rows = answers(collected(grid, cells))
    assert seed == 1 and [row.prompt for row in rows] == ["p", "q"]  # where they are furthest apart comes first
    assert {name: answer.text for name, answer in rows[0].answers.items()} == {
        "clip=on": "clip=on good",
        "clip=off": "clip=off good",
    }
    assert rows[0].before.text == "before" and rows[0].before.iteration == 0


def test_a_seed_is_taken_that_all_variants_have(tmp_path):
    grid, cells = finished.whole(tmp_path)
    seed, rows = answers(collected(grid, cells, without=["clip=off,seed=1"]))
    assert seed == 2 and set(rows[0].answers) == {"clip=on", "clip=off"}


def test_where_variants_began_otherwise_no_common_answer_is_shown(tmp_path):
    grid, cells = finished.whole(tmp_path)
    run_folders.evaluation(cells[0].experiment.directory / "ppo", 0, [("p", "other", 0.0), ("q", "before", 0.0)])
    _, rows = answers(collected(grid, cells))
    assert {row.prompt: row.before is None for row in rows} == {"p": True, "q": False}


def test_some_of_many_prompts_are_shown(tmp_path):
    grid, cells = finished.whole(tmp_path)
    for cell in cells:
        rows = [(f"p{at}", "a", float(at) if cell.variant == "clip=on" else 0.0) for at in range(20)]
        run_folders.evaluation(cell.experiment.directory / "ppo", 1, rows)
        run_folders.evaluation(cell.experiment.directory / "ppo", 0, rows)
    _, rows = answers(collected(grid, cells))
    assert len(rows) == PROMPTS and (rows[0].prompt, rows[-1].prompt) == ("p19", "p0")


def test_without_answers_there_are_none(tmp_path):
    grid, cells = finished.grid(tmp_path)
    for cell in cells:
        finished.finish(cell, {"eval/gold_score": 1.0})
    assert answers(collected(grid, cells)) == (0, [])


def test_oddities_are_counted_by_variant(tmp_path):
    grid, cells = finished.whole(tmp_path)
    for cell in cells:
        if cell.variant == "clip=off":  # the score rises, the judge falls from its best
            gold = [0.0, 3.0, -3.0]
            lines = [{"eval/score": float(at), "eval/gold_score": value} for at, value in enumerate(gold)]
            finished.finish(cell, *lines)
    found = {odd.title: odd for odd in oddities(collected(grid, cells))}
    judged = found["The score rises while “gold” falls"]
    assert judged.grave and judged.cells == {"clip=off": 3} and judged.where == "clip=off,seed=1"
    # a word that is said of a cell is not a kind of its own
    assert found["One word takes over"].cells == {"clip=on": 3, "clip=off": 3}


def test_what_was_made_once_is_counted_once(tmp_path):
    grid, cells = finished.whole(tmp_path)
    found = cost(collected(grid, cells))
    # each stage says 75 s; the supervised one of a seed is in two cells
    assert found.stages.to_dict("records") == [
        {"stage": "sft", "made": 3, "cells": 6, "seconds": 225.0, "saved": 225.0},
        {"stage": "ppo", "made": 6, "cells": 6, "seconds": 450.0, "saved": 0.0},
    ]
    assert found.seconds == 675.0
    assert found.variants["cells"].tolist() == [3, 3] and found.variants["seconds"].tolist() == [75.0, 75.0]


def test_tokens_and_memory_are_those_of_the_last_stage(tmp_path):
    grid, cells = finished.whole(tmp_path)
    for number, cell in enumerate(cells):
        speed = {"throughput/rollout_tokens_per_s": 50.0, "time/rollout": 2.0, "memory/peak_gb": 1.0 + number}
        finished.finish(cell, {"eval/gold_score": 0.0}, {"eval/gold_score": 1.0, **speed})
    variants = cost(collected(grid, cells)).variants.set_index("variant")
    assert variants["tokens"].to_dict() == {"clip=on": 100, "clip=off": 100}
    assert variants["memory"].to_dict() == {"clip=on": 3.0, "clip=off": 6.0}


def test_stages_without_a_key_are_each_their_own(tmp_path):
    grid, cells = finished.whole(tmp_path)
    for number, cell in enumerate(cells):
        path = cell.experiment.directory / "sft/stage.json"
        path.write_text(json.dumps({"key": None, "id": f"n{number}"}))
    assert cost(collected(grid, cells)).stages.set_index("stage")["made"]["sft"] == pytest.approx(6)
