"""The command."""

import subprocess
import sys

import pytest
from run_folders import simple

from rlhf.report.__main__ import main


def test_writes_beside_the_run_or_where_told(tmp_path, capsys):
    folder = simple(tmp_path / "toy")
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    assert main([str(folder), str(simple(tmp_path / "other")), "--output", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")


def test_what_is_no_run_is_exit_code_1_and_a_message(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.startswith(f"Error: {tmp_path / 'nowhere'} does not exist")
    assert main([]) == 2


def test_compare_prints_and_writes_nothing(tmp_path, capsys):
    folders = [str(simple(tmp_path / name, lr=lr)) for name, lr in (("a", 1e-3), ("b", 2e-3))]
    before = sorted(tmp_path.rglob("*"))
    assert main(["--compare", *folders]) == main([*folders, "--compare"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"A: {folders[0]}") and "stages.ppo.optimizer.lr" in out
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_compared_is_said(tmp_path, capsys):
    one, other = (str(simple(tmp_path / name)) for name in ("a", "b 2"))
    for runs in ([one], [one, other, one]):
        assert main(["--compare", *runs]) == 2
        assert (
            f"--compare takes two runs, such as --compare runs/a runs/b; {len(runs)} given" in capsys.readouterr().err
        )
    assert main(["--compare", one, other, "--output", str(tmp_path / "x.html")]) == 2
    assert f"python -m rlhf.report {one} '{other}' --output page.html draws both over each" in capsys.readouterr().err
    assert main(["--compare", one, f"{one}/"]) == 1
    assert capsys.readouterr().err == f"Error: --compare: {one} and {one} are one run; give two\n"
    assert main(["--compare", one, f"{one}/ppo"]) == 1
    assert "is one stage of a run" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_needs_nothing_that_draws_and_stops_with_its_reader(tmp_path):
    folders = [str(simple(tmp_path / name, lr=lr)) for name, lr in (("a", 1e-3), ("b", 2e-3))]
    code = (
        "import sys; from rlhf.report.__main__ import main; code = main(['--compare', *sys.argv[1:]]); "
        "print([m for m in ('plotly', 'jinja2', 'pandas', 'transformers') if m in sys.modules], file=sys.stderr); "
        "sys.exit(code)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *folders], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == "[]\n"
        assert process.wait() == 0


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from rlhf.report.__main__ import main; code = main(['--help']); "
        "print([m for m in ('torch', 'transformers', 'plotly', 'jinja2') if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Several runs are drawn over each other" in " ".join(done.stdout.split())
    assert done.stdout.endswith("[]\n")
