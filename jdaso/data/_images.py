"""Folders of images, one for each class."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from .._launch.paths import shown
from .._types import PyTree
from ._extra import needs
from ._reading import LoadingError

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


class ImageFolder:
    """Images in one folder per class, such as ImageNet's: ``path/class/image.jpeg``.

    Classes are numbered in the order of their folders' names; samples are sorted by class, then by
    file name. An image is scaled to cover the square, and its middle is cut out.

    Args:
        path: the folder that holds the folders of classes; those are searched recursively.
        size: height and width of the samples, in pixels.
        mode: Pillow's: ``"RGB"`` or ``"L"`` (grey).

    Raises:
        ImportError: Pillow is missing.
        ValueError: no image is found.

    Attributes:
        classes: names of the classes.
        files: paths of the samples.
        labels: int32 [N].

    Example:
        >>> import tempfile, numpy as np
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from jdaso.data import ImageFolder
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     Image.new("RGB", (50, 40)).save(folder / name / "0.png")
        >>> batch = ImageFolder(folder, size=32).rows(np.array([1, 0]))
        >>> batch["image"].shape, batch["label"].tolist()
        ((2, 32, 32, 3), [1, 0])
    """

    def __init__(self, path: str | Path, size: int, *, mode: str = "RGB"):
        self._pillow = needs("PIL.Image", "ImageFolder")
        if size < 1 or mode not in ("RGB", "L"):
            raise ValueError(
                f'size must be at least 1 and mode "RGB" or "L", got {size=}, {mode=}.'
            )
        self.path, self.size, self.mode = Path(path), size, mode
        folders = sorted(
            x for x in self.path.glob("*") if x.is_dir() and not x.name.startswith(".")
        )
        self.classes = [folder.name for folder in folders]
        found = [
            (file, label)
            for label, folder in enumerate(folders)
            for file in sorted(folder.rglob("*"))
            if file.suffix.lower() in ENDINGS and not file.name.startswith(".")
        ]
        if not found:
            raise ValueError(
                f"{self.path} has no images in folders of their classes, such as "
                f"{self.path}/cat/0.jpeg. Endings looked for: {', '.join(sorted(ENDINGS))}."
            )
        self.files = [file for file, _ in found]
        self.labels = np.array([label for _, label in found], np.int32)

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, indices: np.ndarray) -> PyTree:
        """Returns samples: ``image`` uint8 [n, size, size, 3] or [n, size, size], ``label`` int32.

        Raises:
            LoadingError: an image cannot be decoded; names the file.
        """
        images = np.stack([self._decode(self.files[i]) for i in indices])
        return {"image": images, "label": self.labels[indices]}

    def _decode(self, file: Path) -> np.ndarray:
        size = self.size
        try:
            if not stat.S_ISREG(os.stat(file).st_mode):  # opening a pipe would block
                raise ValueError("it is not a regular file")
            with self._pillow.open(file) as image:
                if image.mode[:1] in "IF":  # Pillow would clip values at 255
                    raise ValueError(f"its mode is {image.mode}, more than 8 bits a number")
                image.draft(self.mode, (size, size))  # decodes a JPEG no larger than needed
                image = image.convert(self.mode)
                scale = size / min(image.size)
                width, height = (max(size, round(x * scale)) for x in image.size)
                left, top = (width - size) // 2, (height - size) // 2
                image = image.resize((width, height), self._pillow.Resampling.BILINEAR)
                return np.asarray(image.crop((left, top, left + size, top + size)))
        except Exception as error:  # Pillow's plugins raise any error of their parsers
            bomb = isinstance(error, self._pillow.DecompressionBombError)
            remedy = "Take it out" + ", or raise PIL.Image.MAX_IMAGE_PIXELS" * bomb
            why = f"{type(error).__name__}: {error}".rstrip(".")
            raise LoadingError(
                f"{shown(file)} is not a readable image: {why}. {remedy}."
            ) from error
