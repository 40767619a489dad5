"""``simulate --from``: the link that a study measured, unless an option names another."""

import json
import re
from pathlib import Path

import pytest
from study_rows import row, write

from jdaso.cli import main
from jdaso.fabric import Fabric
from jdaso.fabric._study.collectives import ALGORITHMS
from jdaso.fabric._study.declaration import read_study

ROOT = Path(__file__).parents[3]

ALPHA, BYTES_PER_SECOND = 30e-6, 1e9 / 8 * 0.95


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Rings on links of 1 and 10 Gbit/s, and a message on the first."""
    rows = []
    for fabric, rate in (("1g", BYTES_PER_SECOND), ("10g", 10 * BYTES_PER_SECOND)):
        for p in (2, 4):
            for size in (10**3, 10**4, 10**5, 10**6):
                ring = 2 * (p - 1) * (ALPHA + size / p / rate)
                rows.append(row(fabric, 0, [ring] * 3, nodes=p, bytes=size))
                if fabric == "1g" and p == 2:
                    seconds = [2 * ALPHA + size / rate]
                    rows.append(row(fabric, 0, seconds, bytes=size, workload="bandwidth"))
    return str(write(tmp_path_factory.mktemp("study"), rows))


def simulated(capsys, *options):
    assert main(["simulate", "--json", *options]) == 0
    out, err = capsys.readouterr()
    return Fabric(**json.loads(out)["fabric"]), err


def test_rate_and_latency_are_those_of_the_study(study, capsys):
    found, words = simulated(capsys, "--from", study, "--where", "fabric=1g")
    assert found.bits_per_second == pytest.approx(1e9, rel=1e-4)
    assert found.latency_seconds == pytest.approx(ALPHA, rel=1e-4)
    assert "1g, allreduce: 30 us a round, 0.95 Gbit/s (ring; 4 cells" in words
    found, _ = simulated(capsys, "--from", study, "--where", "fabric=10g", "--nodes", "64")
    assert found.bits_per_second == pytest.approx(1e10, rel=1e-4) and found.nodes == 64


def test_the_command_of_the_docs_works_on_the_study_of_the_docs(tmp_path, capsys, monkeypatch):
    docs = (ROOT / "docs" / "studies.md").read_text()
    command = re.search(r"python -m jdaso (simulate --from [^`\n]*)", docs)[1].split()
    short = command[2].endswith("-short")
    rows = []
    for cell in read_study(ROOT / "examples/studies/links.toml", short=short).cells:
        if cell.factors["workload"] in ALGORITHMS:
            algorithm, nodes = ALGORITHMS[cell.factors["workload"]][0], cell.factors["nodes"]
            moved = algorithm.share(nodes) * cell.factors["bytes"] / BYTES_PER_SECOND
            seconds = algorithm.rounds(nodes) * ALPHA + moved
            rows.append(row(seconds=[seconds], **cell.factors))
    write(tmp_path / command[2], rows)
    monkeypatch.chdir(tmp_path)
    found, _ = simulated(capsys, *command[1:])
    assert found.latency_seconds == pytest.approx(ALPHA, rel=1e-3)


def test_options_override_the_study_and_the_study_a_preset(study, capsys):
    where = ("--from", study, "--where", "fabric=1g", "--preset", "cloud-400g")
    found, _ = simulated(capsys, *where, "--rate", "5gbit")
    assert found.bits_per_second == 5e9 and found.latency_seconds == pytest.approx(ALPHA, rel=1e-4)
    found, _ = simulated(capsys, *where, "--latency-us", "7")
    assert found.bits_per_second == pytest.approx(1e9, rel=1e-4)
    assert found.latency_seconds == pytest.approx(7e-6)


def test_another_operation_is_chosen_by_name(study, capsys):
    found, _ = simulated(capsys, "--from", study, "--where", "workload=bandwidth")
    assert found.latency_seconds == pytest.approx(2 * ALPHA, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "2 fits of the study match"),
        (["--where", "fabric=x"], "0 fits of the study match"),
        (["--where", "fabric"], "must be FACTOR=LEVEL"),
    ],
)
def test_a_wrong_choice_is_a_mistake_in_the_arguments(study, capsys, options, words):
    assert main(["simulate", "--from", study, *options]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_that_is_no_study_is_a_mistake_in_the_arguments(tmp_path, capsys):
    assert main(["simulate", "--from", str(tmp_path)]) == 2
    assert "Give the folder of a study" in capsys.readouterr().err
    assert main(["simulate", "--where", "a=b"]) == 2
    assert "give --from" in capsys.readouterr().err
