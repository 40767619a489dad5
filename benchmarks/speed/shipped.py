"""Studies that ship with jdaso, in their short forms: answers on their claims, and each cell.

    python benchmarks/speed/shipped.py [--quick] [--studies links daso halo samsi2020]

Their long forms take hours: ``python -m jdaso study FILE.toml --out DIR``. Needs root and iproute2.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.lib import harness
from jdaso import cli

FOLDER = Path(__file__).parents[2] / "examples" / "studies"
SHIPPED = ("links", "daso", "halo", "samsi2020")
INTERRUPTED = 130


def study(name, folder):
    """Runs one study; returns its answers. A launch that is not ok is a row among them."""
    status = cli.main(["study", str(FOLDER / f"{name}.toml"), "--short", "--out", folder])
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    answers = Path(folder) / "answers.json"
    report = ["study", "report", folder, "--format", "json", "--output", str(answers)]
    if status == 2 or cli.main(report):
        raise SystemExit(f"{name}: no answers")
    return json.loads(answers.read_text())["studies"][0]


def claim_row(name, claim):
    return {"study": name, "claim": claim["text"], "answer": claim["words"]}


def cell_row(name, cell):
    """Milliseconds of a cell's iterations: their median, and where 90 % of them lie."""
    ms = {f"{key} ms": 1e3 * cell[key] for key in ("median", "low", "high")}
    setting = " ".join(str(level) for level in cell["factors"].values())
    return {"study": name, "cell": setting, "n": cell["replicates"], **ms}


def failed_row(name, launch):
    setting = " ".join(str(level) for level in launch["factors"].values())
    return {"study": name, "cell": setting, "status": launch["status"]}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one study")
    parser.add_argument("--name", default="shipped", help="of the JSON files")
    parser.add_argument("--studies", nargs="+", choices=SHIPPED, default=SHIPPED)
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    (harness.OUT / f"{arguments.name}_cells.json").unlink(missing_ok=True)  # an older run's
    claims, cells = [], []
    for name in ["links"] if arguments.quick else arguments.studies:
        with tempfile.TemporaryDirectory() as folder:
            found = study(name, folder)
        claims += [claim_row(name, one) for one in found["claims"]]
        cells += [cell_row(name, one) for one in found["cells"]]
        cells += [failed_row(name, one) for one in found["failed"]]
        harness.report(arguments.name, claims)  # also if there is no time left for the next one
        harness.report(f"{arguments.name}_cells", cells)
