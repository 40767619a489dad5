"""Sources larger than memory give what plain NumPy gives."""

import contextlib
import copy
import gc
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jdaso.array as ja
from jdaso.data import HDF5, Arrays, LoadingError, Npy, _open_files
from jdaso.data._arrays import as_source
from jdaso.data._reading import runs

ASKED = [np.arange(23), np.array([22, 0, 0, 5, 4, 3, 6]), np.array([7]), np.arange(0)]
ASKED.append(np.random.default_rng(0).integers(0, 23, 60))


def content(dtype=np.int32, shape=(23, 5, 3)):
    return np.random.default_rng(1).integers(0, 100, shape).astype(dtype)


def same(source, array):
    assert len(source) == len(array)
    for indices in ASKED:
        found = source.rows(indices)
        np.testing.assert_array_equal(found, array[indices])
        assert found.dtype == array.dtype.newbyteorder("=") and found.flags.writeable


@given(st.lists(st.integers(0, 12), max_size=30))
def test_runs_hold_every_place_once_and_are_neighbours(indices):
    indices = np.array(indices, np.int64)
    found = list(runs(indices))
    assert sorted(np.concatenate(found).tolist() if found else []) == list(range(len(indices)))
    for places in found:
        assert (np.diff(indices[places]) == 1).all()


@pytest.mark.parametrize(
    "array",
    [
        content(),
        content(">f8"),
        content(np.uint8, (23,)),
        content(bool),
        content(np.float16, (23, 0)),
        content(np.complex64),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_npy(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    same(Npy(tmp_path / "x.npy"), array)


def test_npy_shards_follow_one_another(tmp_path):
    array = content()
    parts = [tmp_path / f"{k}.npy" for k in range(4)]
    for path, part in zip(parts, np.split(array, [4, 4, 20]), strict=True):
        np.save(path, part)
    same(Npy(parts), array)


def test_npy_of_more_shards_than_may_be_open(tmp_path, monkeypatch):
    """Some files stay open, others are opened again; threads read all of them at once."""
    monkeypatch.setattr(_open_files, "MOST_IDLE", 3)
    array = content()
    paths = [tmp_path / f"{k}.npy" for k in range(23)]
    for path, row in zip(paths, array, strict=True):
        np.save(path, row[None])
    gc.collect()  # files of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    source = Npy(paths)
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: same(source, array), range(20)):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    np.save(tmp_path / "new.npy", array[:1])
    os.replace(tmp_path / "new.npy", paths[0])
    source.rows(np.arange(1, 23))
    with pytest.raises(LoadingError, match=r"0\.npy cannot be read .* another file has taken"):
        source.rows(np.arange(1))
    source = None
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_copy_of_a_source_opens_its_files_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(_open_files, "MOST_IDLE", 1)
    np.save(tmp_path / "x.npy", content())
    source = Npy(tmp_path / "x.npy")
    for again in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        same(again, content())
        same(source, content())


def test_a_process_that_is_forked_during_a_read_reads_too(tmp_path):
    np.save(tmp_path / "x.npy", content())
    source, ended = Npy(tmp_path / "x.npy"), threading.Event()

    def read():
        while not ended.is_set():
            _open_files._lock.acquire()
            _open_files._lock.release()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(read)
        try:
            for _ in range(30):
                if (child := os.fork()) == 0:
                    signal.alarm(10)  # ends a child that waits for the lock
                    source.rows(np.arange(3))
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            ended.set()


def test_npy_by_names(tmp_path):
    x, y = content(), np.arange(23)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    found = Npy({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"}).rows(np.array([3, 1]))
    np.testing.assert_array_equal(found["x"], x[[3, 1]])
    np.testing.assert_array_equal(found["y"], [3, 1])


def test_a_run_of_more_rows_than_one_read_takes(tmp_path):
    array = np.arange(5000, dtype=np.int16)
    np.save(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(Npy(tmp_path / "x.npy").rows(np.arange(5000)), array)


def test_reads_that_stop_midway_go_on(tmp_path, monkeypatch):
    array, read = content(), os.preadv
    np.save(tmp_path / "x.npy", array)
    few = lambda fd, buffers, at: read(fd, [memoryview(buffers[0])[:7]], at)  # noqa: E731
    monkeypatch.setattr("os.preadv", few)
    same(Npy(tmp_path / "x.npy"), array)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: np.save(p, np.asfortranarray(content())), "Fortran order"),
        (lambda p: np.save(p, np.int32(5)), "at least one"),
        (lambda p: np.save(p, np.array([{}]), allow_pickle=True), "rows can only be"),
        (lambda p: p.write_bytes(b"x" * 200), "is not a .npy file"),
        (lambda p: (np.save(p, content()), p.write_bytes(p.read_bytes()[:-1])), "is cut short"),
        (lambda p: np.save(p, content()[:0]), "at least one, got"),
    ],
)
def test_npy_files_that_will_not_do(tmp_path, make, said):
    make(tmp_path / "x.npy")
    with pytest.raises(ValueError, match=said):
        Npy(tmp_path / "x.npy")


def test_npy_files_that_do_not_fit(tmp_path):
    np.save(tmp_path / "x.npy", content())
    np.save(tmp_path / "y.npy", content(np.int64)[:5])
    with pytest.raises(ValueError, match="rows of one kind"):
        Npy([tmp_path / "x.npy", tmp_path / "y.npy"])
    with pytest.raises(ValueError, match="equally many, at least one, got x: 23, y: 5"):
        Npy({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})


def test_a_file_cut_short_meanwhile(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, content())
    source = Npy(path)
    path.write_bytes(path.read_bytes()[:-100])  # the same file, shorter
    with pytest.raises(LoadingError, match="cut short"):
        source.rows(np.array([22]))


LAYOUTS = {
    "contiguous": {},
    "rows": {"chunks": (4, 5, 3)},
    "axes": {"chunks": (4, 2, 2)},
    "gzip": {"chunks": (4, 5, 3), "compression": "gzip"},
    "gzip and shuffle": {"chunks": (3, 2, 3), "compression": "gzip", "shuffle": True},
    "shuffle": {"chunks": (4, 5, 3), "shuffle": True},
    "one chunk": {"chunks": (23, 5, 3), "compression": "gzip"},
    "lzf": {"chunks": (4, 5, 3), "compression": "lzf"},
    "checksums": {"chunks": (4, 5, 3), "fletcher32": True},
}


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.int32, ">f8"])
def test_hdf5(tmp_path, caplog, layout, latest, dtype):
    array = content(dtype)
    with h5py.File(tmp_path / "x.h5", "w", libver="latest" if latest else "earliest") as file:
        file.create_dataset("group/x", data=array, **LAYOUTS[layout])
    with caplog.at_level(logging.WARNING):
        same(HDF5(tmp_path / "x.h5", "group/x"), array)
    assert ("read by the HDF5 library" in caplog.text) == (layout in ("lzf", "checksums"))


def test_hdf5_that_was_written_in_part(tmp_path):
    """Chunks and data sets that were never written hold the fill value; filters may be left out."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        some = file.create_dataset("some", (23, 6), "i4", chunks=(4, 3), fillvalue=7)
        some[8:12] = 1
        file.create_dataset("none", (23, 2), "f4", fillvalue=2)
        packed = file.create_dataset("packed", (23, 2), "i4", chunks=(4, 2), compression="gzip")
        packed[:4] = packed[8:] = 5
        packed.id.write_direct_chunk((4, 0), np.full((4, 2), 9, "i4").tobytes(), filter_mask=1)
    with h5py.File(tmp_path / "x.h5") as file:
        expected = {name: file[name][...] for name in file}
    source = HDF5(tmp_path / "x.h5", list(expected))
    for indices in ASKED:
        found = source.rows(indices)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array[indices])


def test_hdf5_with_a_userblock(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file["x"] = content()
    np.testing.assert_array_equal(
        HDF5(tmp_path / "x.h5", {"y": "x"}).rows(np.array([5, 2]))["y"], content()[[5, 2]]
    )


def test_hdf5_chunks_are_read_past_the_library(tmp_path, monkeypatch):
    """The library allows one thread at a time; here h5py.File is unavailable."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=content(), **LAYOUTS["gzip and shuffle"])
    source = HDF5(tmp_path / "x.h5", "x")
    monkeypatch.setattr(h5py, "File", None)
    same(source, content())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: file.create_group("x"), "has no data set 'x'. Its top level holds: x"),
        (lambda file: file.create_dataset("x", data=5), "at least one axis"),
        (lambda file: file.create_dataset("x", (3,), h5py.string_dtype()), "rows of numbers"),
        (lambda file: file.create_dataset("x", (0, 4), "f4"), "at least one, got x: 0"),
    ],
)
def test_hdf5_that_will_not_do(tmp_path, make, said):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        make(file)
    with pytest.raises(ValueError, match=said):
        HDF5(tmp_path / "x.h5", ["x"])


def test_what_is_no_hdf5(tmp_path):
    (tmp_path / "x.h5").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="is not a readable HDF5 file"):
        HDF5(tmp_path / "x.h5", "x")
    with pytest.raises(FileNotFoundError):
        HDF5(tmp_path / "y.h5", "x")


def test_a_damaged_chunk_is_named(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=content(), **LAYOUTS["gzip"])
        at = file["x"].id.get_chunk_info(1).byte_offset
    raw = bytearray((tmp_path / "x.h5").read_bytes())
    raw[at + 4] ^= 255
    (tmp_path / "x.h5").write_bytes(raw)
    source = HDF5(tmp_path / "x.h5", "x")
    np.testing.assert_array_equal(source.rows(np.array([0])), content()[:1])
    with pytest.raises(LoadingError, match=f"The chunk at byte {at} of .*x.h5 is damaged"):
        source.rows(np.array([5]))


@pytest.mark.parametrize("layout", ["contiguous", "gzip and shuffle", "lzf"])
def test_threads_read_at_once(tmp_path, layout):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=content(), **LAYOUTS[layout])
    source, wrong = HDF5(tmp_path / "x.h5", "x"), []

    def read(seed):
        random = np.random.default_rng(seed)
        for _ in range(100):
            indices = random.integers(0, 23, 8)
            if not np.array_equal(source.rows(indices), content()[indices]):
                wrong.append(indices)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_arrays():
    tree = {"x": content(), "y": (np.arange(23),)}
    source = Arrays(tree)
    found = source.rows(np.array([4, 4]))
    np.testing.assert_array_equal(found["x"], tree["x"][[4, 4]])
    found["x"][:] = -1  # a copy
    assert tree["x"].min() >= 0
    with pytest.raises(ValueError, match=r"equally many, at least one, got a: 3, b.0: 2"):
        Arrays({"a": np.zeros(3), "b": (np.zeros(2),)})


def test_hdf5_that_links_to_another_file(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["y"] = np.arange(100, 120)
    with h5py.File(tmp_path / "main.h5", "w") as file:
        file["x"] = np.arange(20)
        file["linked"] = h5py.ExternalLink("other.h5", "/y")
    found = HDF5(tmp_path / "main.h5", ["x", "linked"]).rows(np.array([3, 7]))
    assert {name: x.tolist() for name, x in found.items()} == {
        "x": [3, 7],
        "linked": [103, 107],
    }


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'pip install "jdaso\[data\]"'):
        HDF5(tmp_path, "x")


def test_a_disk_that_fails_is_named_by_the_file(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    source = Npy(tmp_path / "x.npy")
    monkeypatch.setattr(os, "preadv", mock.Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(LoadingError, match=r"x.npy cannot be read at byte 128: .*Input/output"):
        source.rows(np.array([0]))


def test_a_data_set_that_the_library_cannot_read_is_named(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("y", data=np.arange(400), chunks=(100,), compression="lzf")
        at = file["y"].id.get_chunk_info(1).byte_offset
    with open(tmp_path / "x.h5", "r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 40)
    with pytest.raises(LoadingError, match=r"'/y' of .*x.h5 cannot be read from row 150"):
        HDF5(tmp_path / "x.h5", "y").rows(np.array([150]))


@contextlib.contextmanager
def within(seconds):
    """Ends what waits in a system call for longer."""

    def end(number, frame):
        raise AssertionError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "socket", "folder", "device"])
@pytest.mark.parametrize("source", [Npy, lambda path: HDF5(path, "x")], ids=["Npy", "HDF5"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(source, kind, tmp_path):
    path = tmp_path / "x"
    if kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe") if "link" in kind else (tmp_path / "pipe").rename(path)
    with within(5), pytest.raises(ValueError, match=f"{path} is a {kind.split()[-1]}.*regular"):
        source(path)


def test_a_link_to_a_regular_file_is_followed(tmp_path):
    np.save(tmp_path / "x.npy", content())
    (tmp_path / "link").symlink_to("x.npy")
    same(Npy(tmp_path / "link"), content())


def float_type(base=h5py.h5t.IEEE_F32LE, **changes):
    """A floating-point type of HDF5 that NumPy may not have."""
    found = base.copy()
    for name, values in changes.items():
        getattr(found, name)(*values)
    return found


FLOATS = {
    "swapped fields": float_type(set_fields=(31, 0, 8, 8, 23)),
    "7 bits of exponent": float_type(
        set_fields=(30, 23, 7, 0, 23), set_precision=(31,), set_ebias=(63,)
    ),
    "no hidden bit": float_type(h5py.h5t.IEEE_F64LE, set_norm=(h5py.h5t.NORM_NONE,)),
    "bfloat16": float_type(h5py.h5t.IEEE_F16LE, set_fields=(15, 7, 8, 0, 7), set_ebias=(127,)),
    "big float16": h5py.h5t.IEEE_F16BE,
    "long double": h5py.h5t.NATIVE_LDOUBLE,
}


def stored(path, kind, array):
    """A data set of floats of a kind, by themselves and as a field."""
    field = h5py.h5t.create(h5py.h5t.COMPOUND, kind.get_size())
    field.insert(b"f", 0, kind)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(array.shape)
        for name, of in ((b"x", kind), (b"y", field)):
            dataset = h5py.h5d.create(file.id, name, of, space)
            given = array if of is kind else array.astype([("f", "f8")])
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, given)


@pytest.mark.parametrize("kind", FLOATS)
def test_floats_of_any_format(tmp_path, kind):
    array = np.array([1.5, -2.25, 3, 100, 0.125])
    stored(tmp_path / "x.h5", FLOATS[kind], array)
    found = HDF5(tmp_path / "x.h5", "x").rows(np.arange(5))
    np.testing.assert_array_equal(found.astype(np.float64), array)
    if kind != "bfloat16":  # which h5py takes for a wider float, and not in fields
        found = HDF5(tmp_path / "x.h5", "y").rows(np.arange(5))
        np.testing.assert_array_equal(found["f"].astype(np.float64), array)


def test_elements_that_numpy_cannot_hold_are_named(tmp_path):
    odd = float_type(h5py.h5t.IEEE_F64LE, set_ebias=(1000,))
    stored(tmp_path / "x.h5", odd, np.ones(3))
    with pytest.raises(ValueError, match=r"'y' of .*x.h5 has elements that h5py cannot read"):
        HDF5(tmp_path / "x.h5", "y")


def test_lists_are_arrays():
    images = [np.full((2, 3), k) for k in range(4)]
    source = Arrays({"image": images, "label": [0, 1, 0, 1]})
    assert len(source) == 4
    found = source.rows(np.array([3, 1]))
    assert found["image"].shape == (2, 2, 3) and found["label"].tolist() == [1, 1]


def test_an_error_names_some_of_many_arrays():
    with pytest.raises(ValueError, match=r"7: 1 and 12 more\."):
        Arrays(tuple(np.zeros(1 + (k == 15)) for k in range(20)))


@pytest.mark.parametrize("tree", [ja.ones((4, 2)), {"x": ja.ones((4, 2), split=0)}])
def test_arrays_over_nodes_are_refused(tree):
    """JAX takes them for trees: the rows of this node would be all there are."""
    with pytest.raises(TypeError, match=r"Give Loader\(jdaso.array.Rows\(x\), ..., share"):
        as_source(tree)
