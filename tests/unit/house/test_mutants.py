"""The places that `tools/mutants.py` breaks are in the package, once each."""

import runpy
from pathlib import Path

import jdaso

PACKAGE = Path(jdaso.__file__).parent
TOOL = PACKAGE.parent / "tools" / "mutants.py"


def test_every_place_is_there_once():
    mutants = runpy.run_path(str(TOOL))["MUTANTS"]
    assert len(mutants) > 25
    gone = [
        f"{mutant.mechanism}: {mutant.file}"
        for mutant in mutants
        if (PACKAGE / mutant.file).read_text().count(mutant.old) != 1
    ]
    assert not gone
    for mutant in mutants:
        for witness in mutant.witnesses.split():
            assert (PACKAGE.parent / witness.partition("::")[0]).exists(), witness
