"""The command."""

import subprocess
import sys

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


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from rlhf.report.__main__ import main; code = main(['--help']); "
        "print([m for m in ('torch', 'transformers', 'plotly', 'jinja2') if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Several runs are drawn over each other" in " ".join(done.stdout.split())
    assert done.stdout.endswith("[]\n")
