"""The handler's library: compiled once, kept for the user, and skipped where it cannot be built."""

import logging
import os
import re
import stat
import subprocess
import sys
import threading
import time

import pytest

from jdaso._jax.ffi import library

FAKE = """#!{python}
import os, shutil, sys, time
made = sys.argv[sys.argv.index("-o") + 1]
open({log!r}, "a").write(made + "\\n")
time.sleep({sleep})
if {fails}:
    sys.exit("error: the fake compiler fails")
shutil.copy({real!r}, made)
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The real library, compiled by the compiler of this machine."""
    try:
        name = library._load()._name
    except library._UnavailableError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture
def compiler(tmp_path, monkeypatch, real):
    """Puts a fake compiler on PATH, which copies the real library; returns its log."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    log.touch()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(sleep=0.0, fails=False, name="c++"):
        about = {"log": str(log), "sleep": sleep, "fails": fails, "real": real}
        path = folder / name
        path.write_text(FAKE.format(python=sys.executable, **about))
        path.chmod(0o755)
        return log

    return make


def lines(log):
    return log.read_text().splitlines()


def test_it_is_compiled_once_and_loaded_from_the_cache_after(compiler, tmp_path):
    log = compiler()
    for _ in range(2):
        assert library._load().JdasoCallCpu
    (found,) = (tmp_path / "cache" / "jdaso").iterdir()
    assert len(lines(log)) == 1 and found.suffix == ".so"
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


def test_another_compiler_or_source_is_another_file(compiler, monkeypatch, tmp_path):
    compiler()
    library._load()
    compiler(sleep=0.001)
    library._load()
    other = tmp_path / "chain.h"
    other.write_text("// another")
    monkeypatch.setattr(library, "_SOURCES", [library._SOURCES[0], other])
    library._load()
    assert len(list((tmp_path / "cache" / "jdaso").iterdir())) == 3


def test_ranks_that_start_together_do_not_meet(compiler, tmp_path):
    log, found = compiler(sleep=0.2), []
    threads = [threading.Thread(target=lambda: found.append(library._load())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 and len(set(lines(log))) == len(lines(log))
    assert len(list((tmp_path / "cache" / "jdaso").iterdir())) == 1


def test_without_a_folder_to_keep_it_a_private_one_serves(compiler, tmp_path, monkeypatch):
    log = compiler()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(library.tempfile, "tempdir", str(tmp_path))
    assert library._load().JdasoCallCpu
    assert len(lines(log)) == 1 and not list(tmp_path.glob("jdaso-*"))


def test_a_file_of_another_user_is_not_loaded(compiler, tmp_path, monkeypatch):
    log = compiler()
    library._load()
    monkeypatch.setattr(library.os, "getuid", lambda: os.geteuid() + 1)
    library._load()
    assert len(lines(log)) == 2


def test_a_broken_file_is_not_an_error(compiler, tmp_path):
    log = compiler()
    library.cache_folder().mkdir(parents=True)
    name = f"call-{library._key(str(tmp_path / 'bin' / 'c++'))}.so"
    (library.cache_folder() / name).write_bytes(b"broken")
    assert library._load().JdasoCallCpu and len(lines(log)) == 1


def test_a_compiler_that_hangs_ends_with_what_it_started(compiler, monkeypatch, tmp_path):
    compiler(sleep=600)
    monkeypatch.setattr(library, "COMPILE_SECONDS", 1.0)
    begin = time.monotonic()
    with pytest.raises(library._UnavailableError, match="more than 1 s"):
        library._load()
    assert time.monotonic() - begin < 20 and not list((tmp_path / "cache" / "jdaso").iterdir())


REASONS = {
    "no compiler": (None, r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\)"),
    "it fails": ({"fails": True}, "the fake compiler fails"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_is_missing_is_logged_once_and_steps_use_the_other_way(
    reason, compiler, monkeypatch, caplog
):
    settings, text = REASONS[reason]
    if settings is not None:
        compiler(**settings)
    monkeypatch.setattr(
        library, "_register", library.functools.cache(library._register.__wrapped__)
    )
    monkeypatch.delenv("JDASO_FFI", raising=False)
    with caplog.at_level(logging.WARNING, logger="jdaso"):
        assert [library.target(("cpu",), 1) for _ in range(2)] == [None, None]
    (record,) = caplog.records
    assert re.search(text, record.getMessage())


def test_switched_off_nothing_is_compiled(compiler, monkeypatch, caplog):
    log = compiler()
    monkeypatch.setenv("JDASO_FFI", "off")
    assert library.target(("cpu",), 1) is None and not lines(log) and not caplog.records


def test_an_unknown_switch_is_an_error(monkeypatch):
    monkeypatch.setenv("JDASO_FFI", "no")
    with pytest.raises(ValueError, match='"auto".*"off", got \'no\''):
        library.target(("cpu",), 1)


@pytest.mark.parametrize("platforms", [("tpu",), ("rocm",), ("cpu", "cuda")])
def test_other_platforms_keep_the_callback(platforms):
    assert library.target(platforms, 1) is None


def test_no_new_python_is_needed_to_load_it(real):
    """The library links neither Python nor CUDA."""
    found = subprocess.run(["ldd", real], capture_output=True, text=True, timeout=60).stdout
    assert "python" not in found and "cuda" not in found
