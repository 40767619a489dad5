import fcntl
import gzip
import hashlib
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import jdaso.cli._fashion_mnist as data
from jdaso.cli._fashion_mnist import CHECKSUMS, DEBIAN_FOLDER, fashion_mnist, parse_idx


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder of four small IDX files that pass for Fashion-MNIST; without files: a cache."""
    content = {
        "train-images-idx3-ubyte": idx(np.arange(12 * 784).reshape(12, 28, 28) % 256),
        "train-labels-idx1-ubyte": idx(np.arange(12) % 10),
        "t10k-images-idx3-ubyte": idx(np.zeros((3, 28, 28))),
        "t10k-labels-idx1-ubyte": idx(np.array([9, 0, 4])),
    }
    folder = tmp_path / "original"
    folder.mkdir()
    for name, raw in content.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(raw))
        monkeypatch.setitem(CHECKSUMS, name, hashlib.sha256(raw).hexdigest())
    return folder


def load(small, cache, **settings):
    settings = {"url": small.as_uri() + "/", "debian_folder": Path("/nowhere")} | settings
    return fashion_mnist(cache_folder=cache, **settings)


def test_idx_is_undone():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(parse_idx(idx(array)), array)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + b"x",
        lambda raw: raw[:5],
        lambda raw: b"",
        lambda raw: b"\x00\x00\x09" + raw[3:],
        lambda raw: b"<html>" + raw,
    ],
)
def test_damaged_idx_is_named(damage):
    with pytest.raises(ValueError, match=r"labels is not an IDX file.*fetch it again"):
        parse_idx(damage(idx(np.arange(10))), "labels")


def test_given_folder_packed_or_not(small):
    packed = fashion_mnist(small)
    for file in small.glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    plain = fashion_mnist(str(small))
    for a, b in zip(packed, plain, strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain.source == f"Fashion-MNIST from the folder {small}: 12 training and 3 test images"
    assert plain.train_images.shape == (12, 28, 28) and plain.train_images.dtype == np.uint8
    assert plain.train_labels.dtype == np.int32 and list(plain.test_labels) == [9, 0, 4]


def test_other_images_are_not_called_fashion_mnist(small, monkeypatch):
    monkeypatch.setitem(CHECKSUMS, "t10k-labels-idx1-ubyte", "0" * 64)
    assert "NOT Fashion-MNIST" in fashion_mnist(small).source


@pytest.mark.parametrize(
    "damage",
    [lambda raw: raw[:-9], lambda raw: raw[:20] + b"\xff" * 9 + raw[29:], lambda raw: b"x"],
)
def test_a_damaged_file_is_named(small, damage):
    path = small / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} is damaged or incomplete"):
        fashion_mnist(small)


def test_given_folder_that_lacks_files_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no file train-images.*or none"):
        fashion_mnist(tmp_path / "missing")


def test_labels_that_do_not_fit_are_an_error(small):
    (small / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(4))))
    with pytest.raises(ValueError, match=r"a label from 0 to 9 for each.*\(4,\)"):
        fashion_mnist(small)


def test_download_is_kept(small, tmp_path):
    first = load(small, tmp_path / "cache")
    assert "original download" in first.source
    again = load(small, tmp_path / "cache", url="file:///nowhere/")
    np.testing.assert_array_equal(first.train_images, again.train_images)


def test_damaged_download_in_the_cache_is_fetched_again(small, tmp_path):
    load(small, tmp_path / "cache")
    (tmp_path / "cache" / "train-labels-idx1-ubyte.gz").write_bytes(b"half a fi")
    assert "original download" in load(small, tmp_path / "cache").source


def test_a_wrong_checksum_is_refused_and_reported(small, tmp_path, monkeypatch):
    monkeypatch.setitem(CHECKSUMS, "train-labels-idx1-ubyte", "0" * 64)
    found = load(small, tmp_path / "cache")
    assert "digits" in found.source and "NOT Fashion-MNIST" in found.source
    assert "train-labels-idx1-ubyte.gz has SHA-256" in found.source
    assert not (tmp_path / "cache" / "train-labels-idx1-ubyte.gz").exists()


def test_a_server_that_is_too_slow_is_given_up(small, tmp_path):
    assert "took more than 0 s" in load(small, tmp_path, timeout_seconds=0).source


def test_a_user_without_a_home_gets_the_digits(small, monkeypatch):
    """A container that runs as a bare user number has no home."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**30)
    assert "Could not determine home directory" in load(small, None).source


def test_one_downloads_and_the_others_wait(small, tmp_path, monkeypatch):
    fetched, fetch = [], data._fetch
    monkeypatch.setattr(data, "_fetch", lambda *args: fetched.append(args[0]) or fetch(*args))
    threads = [threading.Thread(target=load, args=(small, tmp_path / "cache")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == len(set(fetched)) == 4


def test_digits_are_images_of_28_pixels(tmp_path):
    found = load(tmp_path, tmp_path / "cache")
    assert found.train_images.shape == (1500, 28, 28) and found.train_images.dtype == np.uint8
    assert found.train_images.max() == 255 and set(found.test_labels) == set(range(10))
    assert "NOT Fashion-MNIST" in found.source and "No such file" in found.source


def test_nothing_at_all_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"Install the Debian package dataset-fashion-mnist"):
        load(tmp_path, tmp_path / "cache")


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_debian_package_holds_the_originals():
    found = fashion_mnist()
    assert found.source.startswith("Fashion-MNIST from the Debian package's folder")
    assert found.train_images.shape == (60000, 28, 28) and found.test_images.shape[0] == 10000


def test_a_process_that_holds_the_cache_and_does_not_end_is_not_waited_for_for_ever(tmp_path):
    with open(tmp_path / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match="another process has held .*lock for 0.5 s"):
            data._download(tmp_path, "http://localhost:9/", 0.1)
        assert time.monotonic() - begin < 5
