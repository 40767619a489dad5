"""The notebook of phases: its code runs, and what it shows was made by this code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATH = ROOT / "examples" / "phases.ipynb"
CELLS = json.loads(PATH.read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
SMALLER = "EPOCHS, IMAGES = 4, 16, 2, 1280"


def test_it_is_small_and_was_run_in_order():
    assert PATH.stat().st_size < 200_000
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    outputs = [out for cell in CODE for out in cell["outputs"]]
    assert not [out for out in outputs if out["output_type"] == "error"]
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    assert len(pictures) == 2


def test_its_code_runs(tmp_path):
    """With fewer examples; it prints the lines that it shows, but for their numbers."""
    program = "\n".join("".join(cell["source"]) + "\n" for cell in CODE)
    program, count = re.subn(r"EPOCHS, IMAGES = 4, 16, \d+, \d+", SMALLER, program)
    assert count == 1
    (tmp_path / "phases.py").write_text(program)
    environment = dict(os.environ, MPLBACKEND="agg", JAX_PLATFORMS="cpu")
    run = subprocess.run(
        [sys.executable, tmp_path / "phases.py"],
        cwd=tmp_path, env=environment, text=True, timeout=200,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    shown = [out.get("text", []) for cell in CODE for out in cell["outputs"]]
    without = lambda text: re.sub(r"\d+", "#", text).splitlines()  # noqa: E731
    lines = without("".join(line for text in shown for line in text))
    assert lines and set(lines) <= set(without(run.stdout))
