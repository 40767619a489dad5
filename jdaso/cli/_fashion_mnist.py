"""Fashion-MNIST: images to experiment with; `ImageData.source` names their origin."""

import contextlib
import fcntl
import gzip
import hashlib
import logging
import os
import time
import urllib.request
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# SHA-256 of the uncompressed content: the Debian package holds the same bytes as the original
# download, compressed differently.
CHECKSUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_LOOK_SECONDS = 0.1
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
ORIGINAL_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


class ImageData(NamedTuple):
    """Small grey images with their classes, as NumPy arrays."""

    train_images: np.ndarray  # uint8 [n, 28, 28], 0 is the background
    train_labels: np.ndarray  # int32 [n], 0 to 9
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str  # one sentence: the images and where they came from


def fashion_mnist(
    folder: str | Path | None = None,
    *,
    debian_folder: Path = DEBIAN_FOLDER,
    cache_folder: Path | None = None,
    url: str = ORIGINAL_URL,
    timeout_seconds: float = 60.0,
) -> ImageData:
    """Loads Fashion-MNIST: 60000 and 10000 images of 28x28 pixels in 10 classes.

    Tried in turn: the Debian package ``dataset-fashion-mnist``, the original download,
    scikit-learn's digits. Several processes may call this at once: one downloads, the others wait.

    Args:
        folder: contains four IDX files, gzipped or not. If given, nothing else is tried.
        debian_folder: folder of the Debian package.
        cache_folder: keeps the download; ``~/.cache/jdaso/fashion-mnist`` if None.
        url: where to download from.
        timeout_seconds: the longest that one file may take.

    Raises:
        FileNotFoundError: `folder` lacks a file.
        ValueError: a file's content does not match its name.
        ImportError: nothing was found and scikit-learn is not installed.
    """
    if folder is not None:
        return _from_folder(Path(folder), "the folder")
    if all((debian_folder / f"{name}.gz").is_file() for name in CHECKSUMS):
        return _from_folder(debian_folder, "the Debian package's folder")
    try:
        if cache_folder is None:
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            cache_folder = Path(home) / "jdaso" / "fashion-mnist"
        _download(cache_folder, url, timeout_seconds)
        return _from_folder(cache_folder, "the original download, kept in")
    # A URLError is an OSError; a user without a name, as in containers, has no home: RuntimeError.
    except (OSError, ValueError, EOFError, zlib.error, RuntimeError) as error:
        logging.getLogger("jdaso").warning("Fashion-MNIST could not be downloaded: %s", error)
        return _digits(reason=str(error))


def parse_idx(data: bytes, name: str = "data") -> np.ndarray:
    """Parses bytes in IDX format: 0, 0, 8, the rank, the sizes as big-endian int32, the content."""
    rank = data[3] if len(data) > 3 and data[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * rank
    shape = np.frombuffer(data[4:start].ljust(4 * rank), ">i4").astype(int)
    if rank == 0 or len(data) != start + np.prod(shape):
        raise ValueError(
            f"{name} is not an IDX file of bytes: {len(data)} bytes that begin {data[:16].hex()}. "
            "It is damaged or in another format; fetch it again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _from_folder(folder: Path, where: str) -> ImageData:
    content = {name: _read(folder, name) for name in CHECKSUMS}
    genuine = all(_sha256(content[name]) == wanted for name, wanted in CHECKSUMS.items())
    arrays = [parse_idx(data, str(folder / name)) for name, data in content.items()]
    for images, labels in (arrays[:2], arrays[2:]):
        if images.shape != (len(labels), 28, 28) or labels.max() > 9:
            raise ValueError(
                f"{folder} must hold images of 28x28 and a label from 0 to 9 for each, got images "
                f"{images.shape} and labels {labels.shape} up to {labels.max()}."
            )
    train, train_labels, test, test_labels = arrays
    name = "Fashion-MNIST" if genuine else "28x28 images (by their checksums NOT Fashion-MNIST)"
    source = f"{name} from {where} {folder}: {len(train)} training and {len(test)} test images"
    return ImageData(train, train_labels.astype("i4"), test, test_labels.astype("i4"), source)


def _digits(reason: str) -> ImageData:
    try:
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"No images: no folder was given, {DEBIAN_FOLDER} has none, the download failed "
            f"({reason}) and scikit-learn, whose digits would do, is not installed. Install the "
            "Debian package dataset-fashion-mnist, or scikit-learn, or give a folder (--data)."
        ) from error
    digits: Any = load_digits()
    to_28 = np.maximum(0, 1 - np.abs(np.linspace(0, 7, 28)[:, None] - np.arange(8)))  # linear
    images = np.rint(to_28 @ (digits.images * 255 / 16) @ to_28.T).astype(np.uint8)
    labels = digits.target.astype(np.int32)
    source = f"scikit-learn's digits, resized to 28x28, NOT Fashion-MNIST ({reason})"
    return ImageData(images[:1500], labels[:1500], images[1500:], labels[1500:], source)


def _read(folder: Path, name: str) -> bytes:
    if (folder / f"{name}.gz").is_file():
        try:
            return gzip.decompress((folder / f"{name}.gz").read_bytes())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{folder / name}.gz is damaged or incomplete ({error}). Copy it there again."
            ) from error
    if (folder / name).is_file():
        return (folder / name).read_bytes()
    raise FileNotFoundError(
        f"{folder} has no file {name}.gz or {name}. Give the folder with the four IDX files "
        f"of Fashion-MNIST ({', '.join(CHECKSUMS)}), or none to have them found."
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(cache_folder: Path, url: str, timeout_seconds: float) -> None:
    """Downloads files that are missing or damaged in the cache. Each file appears atomically."""
    cache_folder.mkdir(parents=True, exist_ok=True)
    with open(cache_folder / "lock", "w") as lock:
        _acquire(
            lock, (len(CHECKSUMS) + 1) * timeout_seconds
        )  # the process before may take as long
        for name, wanted in CHECKSUMS.items():
            target, part = cache_folder / f"{name}.gz", cache_folder / f"{name}.part"
            with contextlib.suppress(OSError, EOFError, zlib.error):
                if _sha256(gzip.decompress(target.read_bytes())) == wanted:
                    continue
            part.write_bytes(_fetch(f"{url}{name}.gz", timeout_seconds))
            found = _sha256(gzip.decompress(part.read_bytes()))
            if found != wanted:
                raise ValueError(f"{url}{name}.gz has SHA-256 {found}, expected {wanted}")
            os.replace(part, target)


def _acquire(lock: Any, limit_seconds: float) -> None:
    """Locks a file; a second process waits here, and then finds what the first has downloaded."""
    end = time.monotonic() + limit_seconds
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > end:
            raise TimeoutError(f"another process has held {lock.name} for {limit_seconds:g} s")
        time.sleep(_LOOK_SECONDS)


def _fetch(url: str, timeout_seconds: float) -> bytes:
    end, packed = time.monotonic() + timeout_seconds, b""
    with urllib.request.urlopen(url, timeout=min(20.0, timeout_seconds)) as answer:
        while piece := answer.read(1 << 18):
            packed += piece
            if time.monotonic() > end:
                raise TimeoutError(f"{url} took more than {timeout_seconds:g} s")
    return packed
