"""Hybrid parallelism: a model cut into stages on several nodes, and copies of the pipeline.

May live here: `_plan` (a loss to stages), `_run` (stages to steps), `_optimizer` (optax over
partitions), and on top of them `fit`, `Pipeline`, schedules and the parts of a checkpoint.
May not: averages between replicas (`_optimizers`), files of a save (`checkpoint`), and pictures
(`plots`).
"""

from ._fit import FitResult as FitResult
from ._fit import fit as fit
from ._pipeline import Pipeline as Pipeline
from ._plan.memory import Memory as Memory
from ._plan.partition import partition as partition
from ._plan.plan import Plan as Plan
from ._plan.program import boundary as boundary
from ._run.run import StepResult as StepResult
from ._schedule import SCHEDULES as SCHEDULES
from ._schedule import Schedule as Schedule
from ._schedule import make_schedule as make_schedule
from ._state import PipelineState as PipelineState
