"""A journal keeps every row that it took, once, whenever its process is killed."""

import errno
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nights import rows as table
from studies import launches, lines, row_of, rows_of, small

from jdaso.fabric._study import rows
from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.journal import open_journal, read_rows
from jdaso.fabric._study.rows import Outcome


def filled(folder, study, count=None):
    with open_journal(folder, study) as journal:
        for row in rows_of(study)[:count]:
            journal.append(row)
    return folder / "rows.jsonl"


def test_rows_follow_the_published_schema(tmp_path):
    study = small()
    jsonschema.Draft202012Validator.check_schema(rows.schema())
    path = filled(tmp_path, study)
    for row in lines(tmp_path):
        jsonschema.validate(row, rows.schema())
    assert read_rows(tmp_path) == lines(tmp_path) and len(path.read_text().splitlines()) == 24
    assert set(rows.schema()["properties"]["status"]["enum"]) == set(rows.STATUSES)


@pytest.mark.parametrize(
    "wrong",
    [{"status": "fine"}, {"seconds": [-1.0]}, {"cell": "7"}, {"more": 1}, {"format": 3}],
)
def test_the_schema_refuses_other_rows(wrong):
    study = small()
    row = json.loads(rows_of(study)[0].as_line())
    jsonschema.validate(row, rows.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**row, **wrong}, rows.schema())


def test_a_row_with_numbers_that_json_lacks_is_refused(tmp_path):
    study = small()
    (replicate, cell), *_ = launches(study)
    with open_journal(tmp_path, study) as journal, pytest.raises(ValueError, match="JSON"):
        journal.append(row_of(study, 0, cell, replicate, Outcome("ok", seconds=[float("nan")])))
    assert not lines(tmp_path)


@given(st.data())
@settings(max_examples=15)
def test_a_torn_last_line_is_dropped_and_its_launch_is_free_again(tmp_path_factory, data):
    folder, study = tmp_path_factory.mktemp("torn"), small()
    whole = filled(folder, study, 5).read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    (folder / "rows.jsonl").write_bytes(whole[:cut])
    left = whole[:cut].count(b"\n")
    assert len(read_rows(folder)) == left
    with open_journal(folder, study) as journal:
        for number, row in enumerate(rows_of(study)[:6]):
            key = row.cell, row.replicate
            assert (key in journal) == (number < left)
            if key not in journal:
                journal.append(row)
    keys = [(row["cell"], row["replicate"]) for row in lines(folder)]
    assert keys == [(row.cell, row.replicate) for row in rows_of(study)[:6]]


def test_a_launch_has_one_row(tmp_path):
    study = small()
    with open_journal(tmp_path, study) as journal:
        journal.append(rows_of(study)[0])
        with pytest.raises(StudyError, match="has a row of c.*, replicate 0"):
            journal.append(rows_of(study)[0])
    assert len(lines(tmp_path)) == 1


def test_a_folder_belongs_to_one_declaration(tmp_path):
    before = filled(tmp_path, small(), 3).read_bytes()
    with pytest.raises(StudyError, match=r"belongs to another declaration .* Give another --out"):
        with open_journal(tmp_path, small(seed=8)):
            pytest.fail("it was opened")
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    with open_journal(tmp_path, small(replicates=9)) as journal:  # goes on with more of them
        assert len(journal) == 3


def test_rows_of_another_declaration_are_refused(tmp_path):
    study = small()
    other = filled(tmp_path / "other", small(seed=8), 1).read_text()
    path = filled(tmp_path / "own", study, 2)
    for wrong in (other, "{}\n", "null\n", "rubbish\n"):
        kept = path.read_text()
        path.write_text(kept + wrong)
        with pytest.raises(StudyError, match="line 3, is not a row of this study"):
            with open_journal(tmp_path / "own", study):
                pytest.fail("it was opened")
        path.write_text(kept)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "rows.jsonl").write_text(other)
    with pytest.raises(StudyError, match="without declaration.json"):
        with open_journal(tmp_path / "bare", study):
            pytest.fail("it was opened")
    with pytest.raises(StudyError, match="holds no study"):
        read_rows(tmp_path / "nowhere")


def test_one_process_at_a_time(tmp_path):
    with open_journal(tmp_path, small()):
        with pytest.raises(StudyError, match="Another process runs the study"):
            with open_journal(tmp_path, small()):
                pytest.fail("it was opened")


def test_a_row_is_on_the_disk_before_the_next_launch(tmp_path, monkeypatch):
    synced, study = [], small()
    sync = os.fsync

    def watched(file):
        synced.append(len(lines(tmp_path)))
        sync(file)

    with open_journal(tmp_path, study) as journal:
        monkeypatch.setattr(os, "fsync", watched)
        for row in rows_of(study)[:3]:
            journal.append(row)
    assert synced == [1, 2, 3]


APPENDING = """
import sys; sys.path[:0] = [{lib!r}]
from pathlib import Path
from studies import rows_of, small
from jdaso.fabric._study.journal import open_journal
study = small(replicates=400)
with open_journal({folder!r}, study) as journal:
    for row in rows_of(study):
        if (row.cell, row.replicate) not in journal:
            with Path({folder!r}, "started").open("a") as file:
                file.write(f"{{row.cell}} {{row.replicate}}\\n")
            journal.append(row)
"""


@pytest.mark.parametrize("kills", table([6, 50], day=[6]))
def test_no_row_is_lost_or_doubled_by_kills(tmp_path, kills):
    code = APPENDING.format(lib=str(Path(__file__).parents[2] / "lib"), folder=str(tmp_path))
    choose, had, study = random.Random(kills), 0, small(replicates=400)
    order = [(row.cell, row.replicate) for row in rows_of(study)]
    rows_path = tmp_path / "rows.jsonl"
    for number in itertools.count(1):
        process = subprocess.Popen([sys.executable, "-c", code])
        limit = time.monotonic() + 60
        while process.poll() is None and (not rows_path.exists() or size(rows_path) == had):
            assert time.monotonic() < limit
            time.sleep(0.001)
        time.sleep(choose.uniform(0, 0.05))
        process.kill()
        process.wait(10)
        had = size(rows_path)
        keys = [(row["cell"], row["replicate"]) for row in read_rows(tmp_path)]
        assert keys == order[: len(keys)]  # each once, none lost, in the order of launches
        started = (tmp_path / "started").read_text().count("\n")
        assert started <= len(keys) + number  # a kill repeats one launch at the most
        if number == kills:
            break
    assert len(keys) >= kills // 2  # a round adds rows, or a part of one


def size(path):
    return path.stat().st_size if path.exists() else 0


def test_a_folder_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    """Lustre without -o flock, NFS without its lock service."""

    def none(file, what):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("jdaso.fabric._study.journal.fcntl.flock", none)
    filled(tmp_path, small(), 3)
    assert len(read_rows(tmp_path)) == 3
    assert "does not support locks (Function not implemented); make sure" in caplog.text


@pytest.mark.parametrize(
    ("key", "level", "words"),
    [
        ("format", 9, "line 2, has format 9, known is 2. Read it with the version of jdaso"),
        ("study", None, "line 2, is not a row of this study"),
    ],
)
def test_a_row_of_another_version_is_named(tmp_path, key, level, words):
    path = filled(tmp_path, small(), 3)
    first, second, *others = lines(tmp_path)
    changed = {name: x for name, x in {**second, key: level}.items() if x is not None}
    path.write_text("".join(json.dumps(one) + "\n" for one in (first, changed, *others)))
    with pytest.raises(StudyError, match=words):
        read_rows(tmp_path)


REMEDY = "Free space or choose another folder with --out; the same command goes on where it stopped"


def test_a_full_disk_is_told_with_its_remedy(tmp_path, monkeypatch):
    """The row that was cut short is made again by the next process."""
    study = small()
    write = os.write

    def half(file, line):
        write(file, line[: len(line) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_journal(tmp_path, study) as journal:
        journal.append(rows_of(study)[0])
        monkeypatch.setattr(os, "write", half)
        said = f"{tmp_path}/rows.jsonl cannot be written: No space left on device. {REMEDY}"
        with pytest.raises(StudyError, match=re.escape(said)):
            journal.append(rows_of(study)[1])
        monkeypatch.undo()
    assert len(read_rows(tmp_path)) == 1
    filled_up = rows_of(study)[1]
    with open_journal(tmp_path, study) as journal:
        journal.append(filled_up)
    assert len(read_rows(tmp_path)) == 2


@pytest.mark.parametrize("name", [".", ".lock", "rows.jsonl", "declaration.json"])
def test_what_cannot_be_written_is_named(name, tmp_path):
    """A folder in the place of a file, or a file in that of the folder, stops any user."""
    study, folder = small(), tmp_path / "out"
    if name == ".":
        folder.write_text("")
    else:
        filled(folder, study, 1)
        (folder / name).unlink()
        (folder / (f"{name}.new" if name.startswith("d") else name)).mkdir()
        if name.startswith("d"):
            (folder / "rows.jsonl").unlink()
    with pytest.raises(StudyError) as caught, open_journal(folder, study):
        pass
    said = str(caught.value)
    assert said.startswith(f"{folder / name} cannot be written: ") and REMEDY in said
