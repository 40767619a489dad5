"""Packages of the extra `data`, imported at their first use."""

import importlib
from typing import Any


def needs(module: str, what: str) -> Any:
    """Imports a module of the extra.

    Raises:
        ImportError: it is not installed; the text names its user and how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module.split('.')[0]}, which cannot be imported ({error}). Install it "
            'with: pip install "jdaso[data]"'
        ) from error
