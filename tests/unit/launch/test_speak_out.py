"""`speak_out`: nothing that a process printed is left in the launcher's pipes."""

import os
import subprocess
import sys
import time

from jdaso._launch import last_words

PROGRAM = """
import sys, time
from jdaso._launch.last_words import speak_out
begin = time.monotonic()
sys.stdout.write("last words\\n")  # lies in Python's own buffer
speak_out()
open(sys.argv[1], "w").write(str(time.monotonic() - begin))
"""


def start(took, stdout, program=PROGRAM):
    return subprocess.Popen([sys.executable, "-c", program, took], stdout=stdout)


def test_waits_until_the_pipe_is_read(tmp_path):
    took = tmp_path / "seconds"
    read_end, write_end = os.pipe()
    with start(took, write_end) as process:
        os.close(write_end)
        assert os.read(read_end, 1) == b"l"  # from here on it waits
        time.sleep(0.5)
        assert not took.exists()
        assert os.read(read_end, 100) == b"ast words\n"
        assert process.wait(30) == 0
    os.close(read_end)
    assert float(took.read_text()) >= 0.5


def test_waits_no_longer_than_its_limit(tmp_path):
    took = tmp_path / "seconds"
    with start(took, subprocess.PIPE) as process:
        assert process.wait(30) == 0
        assert process.stdout.read() == b"last words\n"
    assert float(took.read_text()) >= last_words._READ_SECONDS


def test_does_not_wait_for_a_reader_that_is_gone(tmp_path):
    took = tmp_path / "seconds"
    read_end, write_end = os.pipe()
    with start(took, write_end) as process:
        os.close(write_end)
        assert os.read(read_end, 1) == b"l"
        os.close(read_end)
        assert process.wait(30) == 0
    assert float(took.read_text()) < last_words._READ_SECONDS


def test_does_not_wait_for_files(tmp_path):
    took, output = tmp_path / "seconds", tmp_path / "output"
    output.write_text("a file that is longer than what is written over it")
    with output.open("r+") as file, start(took, file) as process:
        assert process.wait(30) == 0
    assert output.read_text().startswith("last words\n")
    assert float(took.read_text()) < last_words._READ_SECONDS


def test_closed_streams_are_no_error(tmp_path):
    took = tmp_path / "seconds"
    program = PROGRAM.replace("speak_out()", "sys.stdout.close()\nspeak_out()")
    with start(took, subprocess.DEVNULL, program) as process:
        assert process.wait(30) == 0
    assert float(took.read_text()) < last_words._READ_SECONDS
