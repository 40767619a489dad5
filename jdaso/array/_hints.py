"""Names of NumPy and HeAT that have another name here, for the error that names it."""

from __future__ import annotations

_OTHER_NAMES = {
    "absolute": "abs",
    "around": "round",
    "array": "asarray(x, split=...)",
    "bitwise_not": "bitwise_invert",
    "bucketize": "digitize",
    "collect": "resplit(x, None)",
    "concatenate": "concat",
    "conjugate": "conj",
    "cross": "linalg.cross",
    "cumprod": "cumulative_prod",
    "cumsum": "cumulative_sum",
    "degrees": "rad2deg",
    "det": "linalg.det",
    "div": "divide",
    "floordiv": "floor_divide",
    "histc": "histogram",
    "identity": "eye",
    "amax": "max",
    "amin": "min",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "load_csv": "load",
    "load_hdf5": "load",
    "load_netcdf": "load",
    "mod": "remainder",
    "mul": "multiply",
    "norm": "linalg.norm",
    "power": "pow",
    "qr": "linalg.qr",
    "radians": "deg2rad",
    "redistribute": "balance",
    "right_shift": "bitwise_right_shift",
    "row_stack": "vstack",
    "save_hdf5": "save",
    "sub": "subtract",
    "svd": "linalg.svd",
    "transpose": "permute_dims(x, axes), or x.T",
}
"""The names here, by theirs."""

_INVERSE = "sin", "cos", "tan", "sinh", "cosh", "tanh"
_OTHER_NAMES |= {f"arc{name}": f"a{name}" for name in _INVERSE} | {"arctan2": "atan2"}


def __getattr__(name: str) -> object:
    """Raises the error of a module without a name; it tells the name here of one elsewhere."""
    raise AttributeError(f"jdaso.array has no {name!r}.{hint_of(name)}", name=name, obj=None)


def hint_of(name: str) -> str:
    """Returns a sentence that tells the name here of one elsewhere; empty if there is none."""
    return f" Take ja.{_OTHER_NAMES[name]}." if name in _OTHER_NAMES else ""
