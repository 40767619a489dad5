"""DASO for JAX: training on many nodes without waiting for the network."""

__version__ = "0.1.0"

from ._launch.environment import started_as as _started_as

# The doctor is for when the rest cannot be imported; a supervisor loads nothing that may fail.
if not (_started_as("doctor") or _started_as("run")):
    from . import checkpoint as checkpoint
    from . import traces as traces
    from ._compat import reserve_cpu_threads as _reserve_cpu_threads
    from ._errors import NodeError as NodeError
    from ._errors import Stopped as Stopped
    from ._exchange.collectives import broadcast as broadcast
    from ._exchange.collectives import mean as mean
    from ._nodes.exit import watch_ranks as _watch_ranks
    from ._optimizers.daso import daso as daso
    from ._optimizers.finalize import finalize as finalize
    from ._optimizers.learning_rate import PlateauState as PlateauState
    from ._optimizers.learning_rate import reduce_on_plateau as reduce_on_plateau
    from ._optimizers.learning_rate import scaled_warmup as scaled_warmup
    from ._optimizers.local_mean import local_mean as local_mean
    from ._optimizers.state import DasoState as DasoState
    from ._optimizers.synchronous import SynchronousState as SynchronousState
    from ._optimizers.synchronous import synchronous as synchronous
    from ._rules.merge import outer as outer
    from ._rules.phases import Phases as Phases
    from ._rules.phases import Plateau as Plateau
    from ._rules.state import PhaseState as PhaseState
    from ._session import Session as Session
    from .pipeline import FitResult as FitResult
    from .pipeline import fit as fit
    from .traces._timeline import Event as Event
    from .traces._timeline import Stats as Stats
    from .traces._timeline import Timeline as Timeline
    from .traces._timeline import hidden_share as hidden_share

    _reserve_cpu_threads()
    _watch_ranks()
