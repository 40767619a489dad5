"""Packages that only some formats need."""

from __future__ import annotations

import importlib
from typing import Any


def needs(module: str, what: str) -> Any:
    """Imports a package.

    Raises:
        ImportError: it is not installed; the text names its user and how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"{what} needs {package}, which cannot be imported ({error}). Install it with: "
            f'pip install {package}, or all that jdaso.array reads: pip install "jdaso[arrays]"'
        ) from error
