"""Packages of the extra `data`, imported where they are first used."""

import importlib
from typing import Any


def needs(module: str, what: str) -> Any:
    """A module of the extra.

    Raises:
        ImportError: it is not installed; says what wants it and how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module.split('.')[0]}, which cannot be imported ({error}). Install it "
            'with: pip install "jdaso[data]"'
        ) from error
