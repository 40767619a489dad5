"""The public names of a package, from the stub that lists them."""

import ast
from pathlib import Path


def homes_of(init: str) -> dict[str, str]:
    """Returns each name in ``__init__.pyi`` with its module, relative to the package.

    A package that loads its names at their first use (PEP 562) has no other list.

    Args:
        init: the ``__file__`` of the package's ``__init__.py``.
    """
    stub = ast.parse(Path(init).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.name: f".{node.module or alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
