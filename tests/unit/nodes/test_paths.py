"""Names of folders are expanded as by a shell, or refused at once."""

import os
from pathlib import Path

import pytest

from jdaso._paths import FolderError, local_folder, shown


def test_what_a_shell_expands_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("RUN", "seven")
    assert local_folder("~/runs/$RUN") == Path("/home/me/runs/seven")
    assert local_folder(Path("~/${RUN}-b")) == Path("/home/me/seven-b")
    assert local_folder(b"/scratch/caf\xe9") == Path("/scratch/caf\udce9")


def test_a_relative_name_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = local_folder("run")
    monkeypatch.chdir("/")
    assert folder == tmp_path / "run"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("s3://bucket/run", r"'s3://bucket/run' is an address .* where it is mounted"),
        (Path("gs://bucket/run"), "'gs:/bucket/run' is an address"),
        ("abfss://a@b/run", "is an address"),
        ("C:\\runs\\a", "is an address"),
        ("memory://run", "is an address"),
        ("file:///scratch/run", "is an address .* the path without it"),
        ("", "folder's name is ''"),
        (" ", "folder's name is ' '"),
        ("a\0b", "folder's name is"),
        ("~nobody_of_this_name/run", "The home in '~nobody_of_this_name/run' is not known"),
        ("/scratch/$NOT_SET/run", r"names \$NOT_SET, which is not set"),
        ("${EMPTY}/run", r"names \$\{EMPTY\}, which is not set"),
    ],
)
def test_what_is_no_folder_is_refused(name, said, monkeypatch):
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(FolderError, match=said):
        local_folder(name)


def test_a_relative_name_in_a_deleted_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FolderError, match="'run' is relative to the working directory, .* deleted"):
        local_folder("run")


def test_a_name_is_shown_on_one_line_of_any_encoding():
    name = os.fsdecode(b"caf\xe9 \xc3\xa9\nx.png")
    assert shown(name) == "caf\\xe9 é\\nx.png"
    assert shown("\ud800") == "\\ud800"
