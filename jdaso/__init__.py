"""DASO for JAX: training on many nodes without waiting for the network."""

__version__ = "0.1.0"

from ._host import started_as as _started_as

# The doctor is for when the rest cannot be imported; a supervisor loads nothing that may fail.
if not (_started_as("doctor") or _started_as("run")):
    from . import checkpoint as checkpoint
    from . import traces as traces
    from ._averaging import DasoState as DasoState
    from ._collectives import broadcast as broadcast
    from ._collectives import finalize as finalize
    from ._collectives import mean as mean
    from ._compat import reserve_cpu_threads as _reserve_cpu_threads
    from ._daso import daso as daso
    from ._exit import watch_ranks as _watch_ranks
    from ._learning_rate import PlateauState as PlateauState
    from ._learning_rate import reduce_on_plateau as reduce_on_plateau
    from ._learning_rate import scaled_warmup as scaled_warmup
    from ._local import local_mean as local_mean
    from ._merge import outer as outer
    from ._phases import Phases as Phases
    from ._phases import Plateau as Plateau
    from ._schedule import PhaseState as PhaseState
    from ._session import Session as Session
    from ._synchronous import SynchronousState as SynchronousState
    from ._synchronous import synchronous as synchronous
    from ._timeline import Event as Event
    from ._timeline import Stats as Stats
    from ._timeline import Timeline as Timeline
    from ._timeline import hidden_share as hidden_share
    from ._types import NodeError as NodeError
    from ._types import Stopped as Stopped
    from .pipeline import FitResult as FitResult
    from .pipeline import fit as fit

    _reserve_cpu_threads()
    _watch_ranks()
