"""NumPy-like arrays over many nodes, computed by JAX and joined over MPI (HeAT, arXiv 2007.13552).

Each node holds a block of an array, along one axis (its split). An operation is JAX's on the block
and, where it needs numbers of other nodes, one operation between nodes (`_world`). Eager code and
code inside `jax.jit` are the same.

May live here: `_layout` (which node holds what; pure), `_world` (the nodes), `_array` (the class),
functions by kind (`_elementwise`, `_reduce`, `_move`, `_shape`, `_index`, `_products`, ...), files
(`io`), random numbers (`random`), linear algebra (`linalg`) and estimators (`cluster`,
`decomposition`, `linear_model`, `naive_bayes`, `neighbors`, `preprocessing`; `_estimator` is their
base).
May not: optimizers, engines' channels, and MPI itself (`_mpi.arrays` has it).
"""

import jax.numpy as _jnp

from . import _at as _at
from . import _index as _index
from . import _pickle as _pickle
from . import cluster as cluster
from . import decomposition as decomposition
from . import fft as fft
from . import io as io
from . import linalg as linalg
from . import linear_model as linear_model
from . import naive_bayes as naive_bayes
from . import neighbors as neighbors
from . import preprocessing as preprocessing
from . import random as random
from ._array import API_VERSIONS as _API_VERSIONS
from ._array import Array as Array
from ._axes import atleast_1d as atleast_1d
from ._axes import atleast_2d as atleast_2d
from ._axes import atleast_3d as atleast_3d
from ._axes import fliplr as fliplr
from ._axes import flipud as flipud
from ._axes import rot90 as rot90
from ._axes import swapaxes as swapaxes
from ._close import allclose as allclose
from ._close import array_equal as array_equal
from ._close import isclose as isclose
from ._conditions import argwhere as argwhere
from ._conditions import flatnonzero as flatnonzero
from ._conditions import interp as interp
from ._conditions import modf as modf
from ._conditions import nan_to_num as nan_to_num
from ._conditions import select as select
from ._counting import Count as Count
from ._counting import counted as counted
from ._covariance import average as average
from ._covariance import corrcoef as corrcoef
from ._covariance import cov as cov
from ._covariance import outer as outer
from ._create import arange as arange
from ._create import asarray as asarray
from ._create import empty as empty
from ._create import empty_like as empty_like
from ._create import eye as eye
from ._create import from_blocks as from_blocks
from ._create import from_dlpack as from_dlpack
from ._create import full as full
from ._create import full_like as full_like
from ._create import linspace as linspace
from ._create import ones as ones
from ._create import ones_like as ones_like
from ._create import zeros as zeros
from ._create import zeros_like as zeros_like
from ._diagonal_matrix import diag as diag
from ._diagonal_matrix import diagonal as diagonal
from ._diagonal_matrix import trace as trace
from ._distances import cdist as cdist
from ._distances import rbf as rbf
from ._dtypes import broadcast_shapes as broadcast_shapes
from ._dtypes import can_cast as can_cast
from ._dtypes import finfo as finfo
from ._dtypes import iinfo as iinfo
from ._dtypes import isdtype as isdtype
from ._dtypes import result_type as result_type
from ._einsum import dot as dot
from ._einsum import einsum as einsum
from ._einsum import inner as inner
from ._einsum import kron as kron
from ._einsum import vdot as vdot
from ._elementwise import abs as abs
from ._elementwise import acos as acos
from ._elementwise import acosh as acosh
from ._elementwise import add as add
from ._elementwise import angle as angle
from ._elementwise import asin as asin
from ._elementwise import asinh as asinh
from ._elementwise import astype as astype
from ._elementwise import atan as atan
from ._elementwise import atan2 as atan2
from ._elementwise import atanh as atanh
from ._elementwise import bitwise_and as bitwise_and
from ._elementwise import bitwise_invert as bitwise_invert
from ._elementwise import bitwise_left_shift as bitwise_left_shift
from ._elementwise import bitwise_or as bitwise_or
from ._elementwise import bitwise_right_shift as bitwise_right_shift
from ._elementwise import bitwise_xor as bitwise_xor
from ._elementwise import cbrt as cbrt
from ._elementwise import ceil as ceil
from ._elementwise import clip as clip
from ._elementwise import conj as conj
from ._elementwise import copysign as copysign
from ._elementwise import cos as cos
from ._elementwise import cosh as cosh
from ._elementwise import deg2rad as deg2rad
from ._elementwise import divide as divide
from ._elementwise import equal as equal
from ._elementwise import exp as exp
from ._elementwise import exp2 as exp2
from ._elementwise import expm1 as expm1
from ._elementwise import fabs as fabs
from ._elementwise import float_power as float_power
from ._elementwise import floor as floor
from ._elementwise import floor_divide as floor_divide
from ._elementwise import fmax as fmax
from ._elementwise import fmin as fmin
from ._elementwise import fmod as fmod
from ._elementwise import gcd as gcd
from ._elementwise import greater as greater
from ._elementwise import greater_equal as greater_equal
from ._elementwise import heaviside as heaviside
from ._elementwise import hypot as hypot
from ._elementwise import imag as imag
from ._elementwise import isfinite as isfinite
from ._elementwise import isinf as isinf
from ._elementwise import isnan as isnan
from ._elementwise import isneginf as isneginf
from ._elementwise import isposinf as isposinf
from ._elementwise import lcm as lcm
from ._elementwise import less as less
from ._elementwise import less_equal as less_equal
from ._elementwise import log as log
from ._elementwise import log1p as log1p
from ._elementwise import log2 as log2
from ._elementwise import log10 as log10
from ._elementwise import logaddexp as logaddexp
from ._elementwise import logaddexp2 as logaddexp2
from ._elementwise import logical_and as logical_and
from ._elementwise import logical_not as logical_not
from ._elementwise import logical_or as logical_or
from ._elementwise import logical_xor as logical_xor
from ._elementwise import maximum as maximum
from ._elementwise import minimum as minimum
from ._elementwise import multiply as multiply
from ._elementwise import negative as negative
from ._elementwise import nextafter as nextafter
from ._elementwise import not_equal as not_equal
from ._elementwise import positive as positive
from ._elementwise import pow as pow
from ._elementwise import rad2deg as rad2deg
from ._elementwise import real as real
from ._elementwise import reciprocal as reciprocal
from ._elementwise import remainder as remainder
from ._elementwise import round as round
from ._elementwise import sign as sign
from ._elementwise import signbit as signbit
from ._elementwise import sin as sin
from ._elementwise import sinc as sinc
from ._elementwise import sinh as sinh
from ._elementwise import sqrt as sqrt
from ._elementwise import square as square
from ._elementwise import subtract as subtract
from ._elementwise import tan as tan
from ._elementwise import tanh as tanh
from ._elementwise import trunc as trunc
from ._elementwise import where as where
from ._hints import __getattr__ as __getattr__
from ._histogram import bincount as bincount
from ._histogram import digitize as digitize
from ._histogram import histogram as histogram
from ._histogram import histogram2d as histogram2d
from ._info import __array_namespace_info__ as __array_namespace_info__
from ._joined import append as append
from ._joined import array_split as array_split
from ._joined import column_stack as column_stack
from ._joined import dsplit as dsplit
from ._joined import dstack as dstack
from ._joined import hsplit as hsplit
from ._joined import hstack as hstack
from ._joined import split as split
from ._joined import vsplit as vsplit
from ._joined import vstack as vstack
from ._moments import mean as mean
from ._moments import std as std
from ._moments import var as var
from ._move import balance as balance
from ._move import resplit as resplit
from ._nan import nanargmax as nanargmax
from ._nan import nanargmin as nanargmin
from ._nan import nanmax as nanmax
from ._nan import nanmean as nanmean
from ._nan import nanmin as nanmin
from ._nan import nanprod as nanprod
from ._nan import nanstd as nanstd
from ._nan import nansum as nansum
from ._nan import nanvar as nanvar
from ._neighbouring import convolve as convolve
from ._neighbouring import correlate as correlate
from ._neighbouring import gradient as gradient
from ._neighbouring import trapezoid as trapezoid
from ._pad import pad as pad
from ._percentile import median as median
from ._percentile import percentile as percentile
from ._percentile import quantile as quantile
from ._products import matmul as matmul
from ._products import matrix_transpose as matrix_transpose
from ._products import tensordot as tensordot
from ._products import vecdot as vecdot
from ._ratios import geomspace as geomspace
from ._ratios import logspace as logspace
from ._reduce import REDUCTIONS as _REDUCTIONS
from ._reduce import argmax as argmax
from ._reduce import argmin as argmin
from ._reduce import count_nonzero as count_nonzero
from ._repeat import broadcast_arrays as broadcast_arrays
from ._repeat import meshgrid as meshgrid
from ._repeat import repeat as repeat
from ._repeat import tile as tile
from ._repeat import unstack as unstack
from ._rows import Rows as Rows
from ._scan import cumulative_prod as cumulative_prod
from ._scan import cumulative_sum as cumulative_sum
from ._scan import diff as diff
from ._scan import tril as tril
from ._scan import triu as triu
from ._sets import intersect1d as intersect1d
from ._sets import setdiff1d as setdiff1d
from ._sets import setxor1d as setxor1d
from ._sets import union1d as union1d
from ._shape import broadcast_to as broadcast_to
from ._shape import concat as concat
from ._shape import expand_dims as expand_dims
from ._shape import flatten as flatten
from ._shape import flip as flip
from ._shape import moveaxis as moveaxis
from ._shape import permute_dims as permute_dims
from ._shape import ravel as ravel
from ._shape import reshape as reshape
from ._shape import roll as roll
from ._shape import squeeze as squeeze
from ._shape import stack as stack
from ._sort import argsort as argsort
from ._sort import sort as sort
from ._spread import kurtosis as kurtosis
from ._spread import ptp as ptp
from ._spread import skew as skew
from ._take import isin as isin
from ._take import nonzero as nonzero
from ._take import searchsorted as searchsorted
from ._take import take as take
from ._take import take_along_axis as take_along_axis
from ._topk import topk as topk
from ._unique import unique_all as unique_all
from ._unique import unique_counts as unique_counts
from ._unique import unique_inverse as unique_inverse
from ._unique import unique_values as unique_values
from ._unique_rows import unique as unique
from .io import load as load
from .io import save as save

__array_api_version__ = _API_VERSIONS[-1]

e, pi, inf, nan, newaxis = _jnp.e, _jnp.pi, _jnp.inf, _jnp.nan, None
bool, int8, int16, int32, int64 = _jnp.bool_, _jnp.int8, _jnp.int16, _jnp.int32, _jnp.int64  # noqa: A001
uint8, uint16, uint32, uint64 = _jnp.uint8, _jnp.uint16, _jnp.uint32, _jnp.uint64
float32, float64, bfloat16, float16 = _jnp.float32, _jnp.float64, _jnp.bfloat16, _jnp.float16
complex64, complex128 = _jnp.complex64, _jnp.complex128

sum, prod = _REDUCTIONS["sum"], _REDUCTIONS["prod"]  # noqa: A001
min, max = _REDUCTIONS["min"], _REDUCTIONS["max"]  # noqa: A001
all, any = _REDUCTIONS["all"], _REDUCTIONS["any"]  # noqa: A001
