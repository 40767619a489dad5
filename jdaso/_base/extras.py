"""Packages of extras, imported at their first use."""

from __future__ import annotations

import importlib
from typing import Any


def needs(module: str, what: str, extra: str) -> Any:
    """Imports a module of an extra.

    Args:
        module: its name.
        what: the module's user, for the message.
        extra: the extra of jdaso that installs it.

    Raises:
        ImportError: the module cannot be imported; the text has the remedy.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"{what} needs {package}, which cannot be imported ({error}). Install it with: "
            f'pip install {package}, or all of the extra: pip install "jdaso[{extra}]"'
        ) from error
