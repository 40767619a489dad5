"""A study goes on after a cell that fails, hangs, is killed or has no memory, and after a kill."""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jsonschema
import pytest
from launcher import ROOT
from nights import rows as table
from studies import lines, small, with_program

from jdaso.cli import main
from jdaso.fabric._study import launch, libraries, memory, outcomes, rows
from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.chosen import ChosenFabric, ChosenLibrary
from jdaso.fabric._study.journal import read_rows
from jdaso.fabric._study.libraries import FoundLibrary
from jdaso.fabric._study.processes import Ended
from jdaso.fabric._study.rows import Outcome
from jdaso.fabric._study.runner import run_study

GIVE = "import json, os, sys, time; about = json.loads(sys.argv[1])\n"
GIVE += "say = lambda **more: print('jdaso-study ' + json.dumps({'seconds': [0.5], **more}))\n"
N = "about['factors']['bytes']"


def noting(path, before=""):
    """A program that notes each of its runs in a file."""
    return f"{GIVE}{before}open({str(path)!r}, 'a').write(str({N}) + chr(10)); say()"


@pytest.fixture(autouse=True)
def _libraries_are_found_at_once(monkeypatch):
    monkeypatch.setattr(libraries, "find", lambda library: FoundLibrary({"python": "3"}))


def statuses(folder):
    return {row["factors"]["bytes"]: row["status"] for row in lines(folder)}


def words(folder, number):
    return next(row["words"] for row in lines(folder) if row["factors"]["bytes"] == number)


FATES = f"""{GIVE}
number = {N}
if number == 1: say(expected_bytes=0, chosen={{'device': 'none'}}, warmup_seconds=[2.0])
if number == 2: print('its last words'); print('and why', file=sys.stderr); sys.exit(3)
if number == 3: time.sleep(60)
if number == 4: os.kill(os.getpid(), 9)
if number == 5: bytearray(1 << 50)
if number == 6: say(seconds=[0.5, 0.0])
if number == 7: print('nothing')
if number == 8: say(expected_bytes=9, bytes_at_interfaces={{'lo': [5, 3], 'eth9': [500, 500]}})
if number == 9: say(expected_bytes=9, bytes_at_interfaces={{'lo': [5, 4], 'eth9': [500, 500]}})
"""


def test_every_fate_of_a_cell_is_a_row_and_the_study_ends(tmp_path):
    study = with_program(
        tmp_path / "fates.py",
        FATES,
        replicates=1,
        limit_seconds=5,
        fabrics={"here": {"interface": "lo"}},
        factors={
            **small_factors(),
            "library": "one",
            "bytes": list(range(1, 10)),
        },
    )
    assert run_study(study, tmp_path / "out") == 9
    assert statuses(tmp_path / "out") == {
        1: "ok",
        2: "failed",
        3: "timed out",
        4: "failed",
        5: "out of memory",
        6: "failed",
        7: "failed",
        8: "other fabric",
        9: "ok",
    }
    assert words(tmp_path / "out", 2) == "Ended with status 3.\nits last words\nand why"
    assert words(tmp_path / "out", 3).startswith("Ended after 5 s, the limit.")
    assert words(tmp_path / "out", 4) == "Ended with status -9."
    assert "MemoryError" in words(tmp_path / "out", 5)
    assert "printed no result (seconds is not a list of seconds: [0.5, 0.0])" in words(
        tmp_path / "out", 6
    )
    assert words(tmp_path / "out", 8) == (
        "lo carried 8 bytes on node 0, where 9 or more had to cross it. Others: eth9 1000."
    )
    for row in lines(tmp_path / "out"):
        jsonschema.validate(row, rows.schema())
        assert row["seconds"] == ([0.5] if row["status"] in ("ok", "other fabric") else [])
    assert [row["order"] for row in lines(tmp_path / "out")] == list(range(9))


COMPILES = f"""{GIVE}
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
jax.jit(lambda x: jnp.sin(x) + 7)(1.0)
say(chosen={{"hit": "/jax/compilation_cache/cache_hits" in found}})
"""


def test_a_launch_takes_what_an_earlier_one_has_compiled(tmp_path):
    study = with_program(
        tmp_path / "compiles.py",
        COMPILES,
        replicates=2,
        factors={**small_factors(), "library": "one", "bytes": 4},
    )
    assert run_study(study, tmp_path / "out") == 2
    assert [row["chosen"]["hit"] for row in lines(tmp_path / "out")] == [False, True]
    assert not (tmp_path / "out" / "compiled").exists()


def small_factors():
    return {"fabric": "here", "library": ["one", "two"], "workload": "mine", "nodes": 1}


def test_a_hanging_cell_is_ended_whole(tmp_path):
    """Processes that left the group, or ignore SIGTERM, are ended too."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sleeps = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(os.getpid(), sleeps.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    factors = {**small_factors(), "library": "one", "bytes": 1}
    study = with_program(tmp_path / "x.py", code, replicates=1, limit_seconds=5, factors=factors)
    begin = time.monotonic()
    run_study(study, tmp_path / "out")
    assert time.monotonic() - begin < 20
    pids = [int(x) for x in words(tmp_path / "out", 1).splitlines()[-1].split()]
    assert len(pids) == 2 and not [pid for pid in pids if runs(pid)]


SIGNALLED_TWICE = """
import sys; sys.path[:0] = [{lib!r}]
from pathlib import Path
from studies import small
from jdaso.fabric._study import libraries
from jdaso.fabric._study.libraries import FoundLibrary
from jdaso.fabric._study.runner import run_study
libraries.find = lambda library: FoundLibrary({{"python": "3"}})
workloads = {{"mine": {{"program": {program!r}, "reads": ["bytes"]}}}}
factors = {{"fabric": "here", "library": "one", "workload": "mine", "nodes": 1, "bytes": 1}}
run_study(small(workloads=workloads, factors=factors, replicates=1, limit_seconds=100), {out!r})
"""


def test_a_second_signal_does_not_cut_the_end_of_a_launch_short(tmp_path):
    """The program notes SIGTERM and goes on, so that it is ended after some seconds."""
    program = tmp_path / "x.py"
    program.write_text(
        "import os, signal, time\n"
        f"signal.signal(15, lambda *_: open({str(tmp_path / 'told')!r}, 'w'))\n"
        f"open({str(tmp_path / 'pid.part')!r}, 'w').write(str(os.getpid()))\n"
        f"os.replace({str(tmp_path / 'pid.part')!r}, {str(tmp_path / 'pid')!r})\n"
        "while True: time.sleep(200)\n"
    )
    lib = str(ROOT / "tests" / "lib")
    names = {"lib": lib, "program": str(program), "out": str(tmp_path / "out")}
    study = subprocess.Popen([sys.executable, "-c", SIGNALLED_TWICE.format(**names)])
    try:
        appears(tmp_path / "pid")
        study.send_signal(signal.SIGINT)
        appears(tmp_path / "told")
        study.send_signal(signal.SIGINT)
        study.wait(30)
    finally:
        study.kill()
        study.wait()
    pid, limit = int((tmp_path / "pid").read_text()), time.monotonic() + 1
    while runs(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not runs(pid)


def appears(path):
    limit = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_finished_cell_is_not_run_again(tmp_path):
    program = noting(tmp_path / "ran")
    study = with_program(tmp_path / "x.py", program)
    taken = []

    def stop(row, left):
        taken.append((row.cell, row.replicate))
        if len(taken) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "out", stop)
    assert run_study(study, tmp_path / "out") == 24 - 5
    assert run_study(study, tmp_path / "out") == 0
    more = with_program(tmp_path / "x.py", program, replicates=4)
    assert run_study(more, tmp_path / "out") == 8
    assert (tmp_path / "ran").read_text().count("\n") == 32
    keys = [(row["cell"], row["replicate"]) for row in read_rows(tmp_path / "out")]
    assert len(set(keys)) == len(keys) == 32 and keys[:5] == taken
    with pytest.raises(StudyError, match="another declaration"):
        run_study(with_program(tmp_path / "x.py", program, seed=1), tmp_path / "out")


def test_what_is_not_ok_runs_again_on_request(tmp_path):
    mended = tmp_path / "mended"
    program = f"{GIVE}sys.exit(3) if {N} == 2 and not os.path.exists({str(mended)!r}) else say()"
    factors = {**small_factors(), "library": "one", "bytes": [1, 2]}
    study = with_program(tmp_path / "x.py", program, factors=factors, replicates=2)
    out = tmp_path / "out"
    assert run_study(study, out) == 4 and run_study(study, out) == 0
    first = lines(out)
    assert run_study(study, out, again=True) == 2  # and fail again
    mended.touch()
    assert run_study(study, out) == 0
    assert run_study(study, out, again=True) == 2
    assert run_study(study, out, again=True) == 0
    assert lines(out)[:4] == first and len(lines(out)) == 8
    tries = [(row["attempt"], row["status"]) for row in lines(out) if row["factors"]["bytes"] == 2]
    assert sorted(tries) == [(1, "failed"), (1, "failed"), (2, "failed"), (2, "failed")] + [
        (3, "ok"),
        (3, "ok"),
    ]
    read = read_rows(out)
    assert len(read) == 4 and {row["status"] for row in read} == {"ok"}
    assert {(row["cell"], row["replicate"]) for row in read} == {
        (row["cell"], row["replicate"]) for row in first
    }
    for row in lines(out):
        jsonschema.validate(row, rows.schema())


@pytest.mark.parametrize("kills", table([4, 50], day=[4]))
def test_a_killed_study_goes_on_at_the_next_cell(tmp_path, kills):
    declared = tmp_path / "study.toml"
    program = tmp_path / "x.py"
    program.write_text(noting(tmp_path / "ran", "time.sleep(0.03); "))
    replicates = 3 if kills < 10 else 60
    declared.write_text(
        f"name = 'killed'\nreplicates = {replicates}\n[factors]\nfabric = 'here'\n"
        f"library = 'none'\nworkload = 'mine'\nnodes = 1\nbytes = [1, 2, 3, 4, 5, 6]\n"
        f"[workloads.mine]\nprogram = '{program}'\nreads = ['bytes']\n"
    )
    code = (
        "import sys; from jdaso.fabric._study import libraries\n"
        "libraries.find = lambda library: libraries.FoundLibrary()\n"
        "from jdaso.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "study", str(declared), "--out", str(tmp_path / "out")]
    choose, before = random.Random(kills), []
    for number in itertools.count(1):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
        try:
            process.wait(choose.uniform(0.15, 0.9) if number <= kills else 60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        keys = keys_of(tmp_path / "out")
        assert keys[: len(before)] == before and len(set(keys)) == len(keys)
        before = keys
        if number > kills:
            break
    assert process.returncode == 0 and len(keys) == 6 * replicates
    ran = (tmp_path / "ran").read_text().count("\n")
    assert len(keys) <= ran <= len(keys) + kills  # a kill repeats one launch at the most
    wait_for(lambda: not left_over(str(program)))


def keys_of(folder):
    if not (folder / "rows.jsonl").exists():
        return []
    return [(row["cell"], row["replicate"]) for row in read_rows(folder)]


def left_over(word):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                found += [int(name)] * (word.encode() in file.read() and int(name) != os.getpid())
        except OSError:
            pass
    return found


def wait_for(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_study(tmp_path, number):
    mark = tmp_path / "pid"
    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    (tmp_path / "x.py").write_text(code)
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests' / 'lib')!r}]\n"
        "from studies import small\n"
        "from jdaso.fabric._study import libraries, runner\n"
        "libraries.find = lambda library: libraries.FoundLibrary()\n"
        f"workloads = {{'mine': {{'program': {str(tmp_path / 'x.py')!r}, 'reads': ['bytes']}}}}\n"
        f"runner.run_study(small(workloads=workloads), {str(tmp_path / 'out')!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: mark.exists() and mark.read_text())
        pid = int(mark.read_text())
        assert runs(pid)
        process.send_signal(number)
        process.wait(15)
        wait_for(lambda: not runs(pid))
    finally:
        process.kill()
        process.wait(10)
    assert not lines(tmp_path / "out")


def test_a_missing_library_is_a_row_that_says_so(tmp_path, monkeypatch):
    monkeypatch.undo()
    nowhere = {"two": {"python": "nowhere/bin/python"}, "one": {}}
    monkeypatch.setattr(libraries, "_PROBE", "print('{}')")
    study = with_program(tmp_path / "x.py", f"{GIVE}say()", libraries=nowhere, replicates=1)
    run_study(study, tmp_path / "out")
    found = {(row["factors"]["library"], row["status"]) for row in lines(tmp_path / "out")}
    assert found == {("one", "ok"), ("two", "missing")}
    text = next(row["words"] for row in lines(tmp_path / "out") if row["status"] == "missing")
    assert re.fullmatch(r"two: there is no /.*/nowhere/bin/python. Install the environment.", text)


def test_a_workload_that_a_library_lacks_is_a_row_that_says_so(tmp_path):
    factors = {"fabric": "here", "library": "gloo", "nodes": 1, "workload": "halo", "grid": 8}
    run_study(small(factors=factors, workloads={}, replicates=1), tmp_path)
    (row,) = lines(tmp_path)
    assert row["status"] == "missing" and row["words"] == "gloo: the workload halo needs MPI."


def test_a_program_of_the_users_own_may_do_what_jdasos_cannot(tmp_path):
    """Its levels have jdaso's names, over a transport on which jdaso's workload has them not."""
    (tmp_path / "x.py").write_text(f"{GIVE}say()")
    mine = {"program": str(tmp_path / "x.py"), "reads": ["method", "wire", "model"]}
    factors = {"fabric": "here", "library": "gloo", "nodes": 1, "method": "daso", "wire": "int8"}
    for name in ("mine", "exchange"):
        of = factors | {"workload": name, "model": "resnet50"}
        study = small(factors=of, workloads={name: mine}, replicates=1)
        run_study(study, tmp_path / name)
        assert [row["status"] for row in lines(tmp_path / name)] == ["ok"]


def test_a_library_that_does_not_load_has_a_reason(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(libraries, "_PROBE", "import no_such_thing")
    assert "No module named 'no_such_thing'" in libraries.find(ChosenLibrary("x")).missing


def test_a_program_that_cannot_be_started_is_a_row(tmp_path):
    factors = {**small_factors(), "bytes": 1, "library": "one"}
    study = with_program(tmp_path / "x.py", f"{GIVE}say()", factors=factors, replicates=1)
    (tmp_path / "x.py").unlink()
    run_study(study, tmp_path / "out")
    assert statuses(tmp_path / "out") == {1: "failed"}
    assert "No such file" in words(tmp_path / "out", 1)


FIVE = outcomes.Limits(5)
HERE = ChosenFabric("here", interface=("eth0", "mlx5_0:1"))


def ended(**about):
    return Ended(**{"status": 0, "timed_out": False, "output": "", "errors": "", **about})


def test_a_process_killed_for_memory_is_distinguished_from_others():
    killed = ended(status=137)
    for short, status in ((True, "out of memory"), (False, "failed")):
        assert outcomes.outcome_of(killed, HERE, FIVE, memory_killed=short).status == status


def test_a_limit_on_memory_is_reported_before_the_hang_that_it_causes():
    limits = outcomes.Limits(5, 4096)
    late, killed = ended(status=-9, timed_out=True), ended(status=137, errors="bye")
    found = outcomes.outcome_of(killed, HERE, limits, memory_killed=True)
    assert found.status == "out of memory"
    told = "Ended with status 137. All its processes may take 4096 bytes, the limit.\nbye"
    assert found.words == told
    assert outcomes.outcome_of(late, HERE, limits, memory_killed=True).status == "out of memory"
    assert outcomes.outcome_of(late, HERE, limits, memory_killed=False).status == "timed out"
    assert outcomes.outcome_of(late, HERE, FIVE, memory_killed=True).status == "timed out"


def test_memory_that_cannot_be_limited_is_refused_before_any_launch(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_groups_of_this_process", lambda: iter([tmp_path / "groups"]))
    limited = small(limit_bytes="1MiB")
    with pytest.raises(StudyError, match="needs a control group .*No such file.* Run as root, or"):
        run_study(limited, tmp_path / "out")
    (tmp_path / "groups").mkdir()
    with pytest.raises(StudyError, match="no hierarchy here has the controller memory"):
        run_study(limited, tmp_path / "out")
    assert not list((tmp_path / "groups").iterdir()) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "sign", ["numpy._core._exceptions._ArrayMemoryError: x", "RESOURCE_EXHAUSTED: Out of memory"]
)
def test_signs_of_memory_in_the_output(sign):
    found = outcomes.outcome_of(ended(status=1, errors=sign), HERE, FIVE, memory_killed=False)
    assert found.status == "out of memory" and sign in found.words


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "[]",
        '{"seconds": 3}',
        '{"seconds": [1], "more": 2}',
        '{"seconds": [NaN]}',
        '{"seconds": [-1]}',
        '{"seconds": [1e999]}',
        '{"seconds": [1], "chosen": {"x": NaN}}',
        '{"seconds": [1], "chosen": []}',
        '{"seconds": [1], "bytes_at_interfaces": [1]}',
        '{"seconds": [1], "words": 3}',
        '{"seconds": [1], "expected_bytes": 1.5}',
        '{"seconds": [1], "bytes_at_interfaces": {"eth0": [1]}}',
        '{"seconds": [1], "status": "ok"}',
        '{"seconds": [1], "other_nodes": {}}',
        '{"seconds": [1], "other_nodes": [[]]}',
        '{"seconds": [1], "other_nodes": [{"expected_bytes": 3}]}',
        '{"seconds": [1], "other_nodes": [{"expected_bytes": 3, "bytes_at_interfaces": {"a": 1}}]}',
    ],
)
def test_a_result_that_no_row_can_hold_is_a_failure(line):
    output = f"{outcomes.RESULT}{line}\n"
    found = outcomes.outcome_of(ended(output=output), HERE, FIVE, memory_killed=False)
    assert found.status == "failed" and "no result" in found.words


def test_bytes_of_all_interfaces_of_a_fabric_count():
    counted = {"eth0": [10, 0], "mlx5_0:1": [0, 90], "lo": [900, 0]}
    result = Outcome("ok", seconds=[1.0], bytes_at_interfaces=counted, expected_bytes=100)
    assert outcomes.with_proof(HERE, result).status == "ok"
    one = ChosenFabric("here", interface=("mlx5_0:1",))
    assert outcomes.with_proof(one, result).status == "other fabric"
    assert outcomes.with_proof(ChosenFabric("here"), result).status == "ok"


def test_bytes_of_every_node_count():
    """Node 0 uses the fabric that its cell names, node 1 another one."""
    pair = {"bytes_at_interfaces": {"eth0": [40, 50], "mlx5_0:1": [10, 0], "lo": [900, 0]}}
    counted = {"eth0": [100, 100], "mlx5_0:1": [0, 0]}
    result = Outcome("ok", "", [1.0], bytes_at_interfaces=counted, expected_bytes=100)
    for expected, status in ((100, "ok"), (101, "other fabric")):
        both = replace(result, other_nodes=[{**pair, "expected_bytes": expected}])
        found = outcomes.with_proof(HERE, both)
        assert found.status == status
    assert found.words == (
        "eth0, mlx5_0:1 carried 100 bytes on node 1, where 101 or more had to cross it. "
        "Others: lo 900."
    )


def test_words_are_the_end_of_the_output():
    text = "\n".join(f"line {k}" for k in range(50))
    found = outcomes.last_words(ended(output=f"{outcomes.RESULT}x\n", errors=text))
    assert found.splitlines() == [f"line {k}" for k in range(38, 50)]


BANNER = """===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 8148 RUNNING AT n02
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
[proxy:0@n01] HYD_pmcd_pmip_control_cmd_cb (pmip_cb.c:490): assert (!closed) failed
[proxy:0@n01] HYDT_dmxu_poll_wait_for_event (demux.c:76): callback returned error status
[proxy:0@n01] main (proxy/pmip.c:123): demux engine error waiting for event
[mpiexec@n01] HYDT_bscu_wait (bscu_wait.c:109): one of the processes terminated badly; aborting
[mpiexec@n01] HYDT_bsci_wait (bsci_wait.c:21): launcher returned error waiting for completion
[mpiexec@n01] main (mpiexec.c:270): process manager error waiting for completion
"""


def test_words_of_a_rank_are_not_lost_among_those_of_its_launcher():
    found = outcomes.last_words(ended(output=f"its last words\n{BANNER}", errors=BANNER))
    where = ["=   PID 8148 RUNNING AT n02", "=   EXIT CODE: 9"]
    assert found.splitlines() == ["its last words", *where, *where]
    other = "[mpiexec@n01] HYDU_sock_connect (sock.c:141): unable to get host address for n09"
    assert outcomes.last_words(ended(errors=other)) == other


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("HYDRA build details", ["-n", "3", "-hosts", "a,b,c", "-ppn", "1"]),
        ("Open MPI", ["-n", "3", "--bind-to", "none", "--host", "a:1,b:1,c:1", "-x", "FI"]),
    ],
)
def test_hosts_of_a_fabric_and_its_variables_reach_the_launcher(monkeypatch, version, expected):
    monkeypatch.setattr(launch, "mpiexec_of", lambda python: "/opt/mpiexec")
    monkeypatch.setattr(launch, "_is_open_mpi", lambda mpiexec: "Open MPI" in version)
    fabric = ChosenFabric("a", environment={"FI": "verbs"}, hosts=("a", "b", "c", "d"))
    study = small(factors={**small_factors(), "library": "one", "nodes": 3, "bytes": 1})
    cell, workload = study.cells[0], study.workloads["mine"]
    made = launch.launch_of(cell, fabric, ChosenLibrary("one"), workload, None, ("a", "b", "c"))
    assert made.command[: 1 + len(expected)] == ["/opt/mpiexec", *expected]
    assert made.command[-2] == "mine.py" and json.loads(made.command[-1])["factors"]["nodes"] == 3
    assert made.chosen["FI"] == made.environment["FI"] == "verbs"


def test_the_command_line(tmp_path, capsys):
    program = tmp_path / "x.py"
    program.write_text(f"{GIVE}sys.exit(1) if {N} == 2 else say()")
    declared = tmp_path / "my study.toml"
    declared.write_text(
        "name = 'told'\nreplicates = 2\nlimit_seconds = 9\n[factors]\nfabric = 'here'\n"
        "library = 'none'\nworkload = 'mine'\nnodes = 1\nbytes = [1, 2]\n"
        f"[workloads.mine]\nprogram = '{program}'\nreads = ['bytes']\n"
        "[short]\nreplicates = 1\n[short.factors]\nbytes = 1\n"
    )
    out = str(tmp_path / "out")
    assert main(["study", str(declared), "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert len(re.findall(r"^c[0-9a-f]{8}  .* about [0-9.]+ s$", listed, re.M)) == 2
    assert "2 cells, 2 replicates, 4 launches, about 7 s, at most 36 s" in listed
    assert main(["study", str(declared), "--short", "--out", f"{out}-short"]) == 0
    assert main(["study", str(declared), "--out", out]) == 1
    told = capsys.readouterr()
    assert f"anew: python -m jdaso study '{declared}' --out {out} --again\n" in told.out
    assert "4 of 4 launches ran now.\n2 failed, 2 ok" in told.out
    assert "Ended with status 1." in told.err
    assert main(["study", str(declared), "--out", out]) == 1
    assert "0 of 4 launches ran now." in capsys.readouterr().out
    declared.write_text(declared.read_text().replace("replicates = 2", "replicates = 1"))
    assert main(["study", str(declared), "--out", out]) == 1
    said = capsys.readouterr().out
    assert "0 of 2 launches ran now." in said
    assert "2 rows are of replicates beyond the 1 declared. They count in the answers." in said
    assert main(["study", str(declared), "--out", out, "--short"]) == 2
    assert "another declaration" in capsys.readouterr().err
    assert main(["study", str(declared)]) == 2
    assert "Give one: --out DIR" in capsys.readouterr().err
