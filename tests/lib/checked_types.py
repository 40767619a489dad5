"""Types and shapes of jdaso's functions, checked at each call by jaxtyping's hook, made cheaper.

jaxtyping makes two more functions of each that it decorates, closures included, and binds each
call's arguments to a signature: half of the time of tests that compute little. Only shapes need
that, since one name stands for one size in a whole call. All other functions have beartype alone.
"""

import contextlib
import dataclasses
import inspect
import typing
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# PEP 484: an int will do where a float is asked for (timeout_seconds=30).
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
PLAIN = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))

_with_shapes = jaxtyping.jaxtyped


def install(packages: str | list[str]) -> None:
    """Checks what is imported of these packages from now on."""
    jaxtyping.jaxtyped = _jaxtyped  # the hook puts it before each function and class
    jaxtyping.install_import_hook(packages, CHECKER)


def _jaxtyped(*, typechecker: Any) -> Any:
    def decorate(what: Any) -> Any:
        return _checked(what, typechecker)

    return decorate


def _checked(what: Any, typechecker: Any) -> Any:
    if isinstance(what, classmethod | staticmethod):
        return type(what)(_checked(what.__func__, typechecker))
    if isinstance(what, property):
        verbs = what.fget, what.fset, what.fdel
        return property(*(verb and _checked(verb, typechecker) for verb in verbs))
    if inspect.isclass(what):
        if dataclasses.is_dataclass(what) and "__init__" in vars(what):
            what.__init__ = _checked(what.__init__, typechecker)
        return what
    written = what.__annotations__
    hints = _hints(what)
    if any(map(_has_shape, hints.values())):
        return _with_shapes(what, typechecker=typechecker)
    what.__annotations__ = hints  # beartype takes them as they are
    try:
        checked = PLAIN(what)
    finally:
        what.__annotations__ = written
    checked.__annotations__ = written
    return checked


def _hints(function: Any) -> dict[str, Any]:
    """The annotations as objects, without those that only type checkers can resolve."""
    found = {}
    for name, hint in function.__annotations__.items():
        alone = lambda: None  # noqa: E731
        alone.__annotations__ = {name: hint}
        with contextlib.suppress(Exception):  # `if TYPE_CHECKING`, or a class that is being made
            found |= typing.get_type_hints(alone, function.__globals__, include_extras=True)
    return found


def _has_shape(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, typing.get_args(hint)))
