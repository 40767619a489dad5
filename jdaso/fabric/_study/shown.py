"""The door of studies for packages that show them: `plots` and `report`.

They import nothing else of this package but the public names of `jdaso.fabric` (a test asserts
it). Only names that such a package needs may stand here, and no code.
"""

from .alpha_beta import Fit as Fit
from .alpha_beta import fits_of as fits_of
from .curves import Chart as Chart
from .curves import bandwidth_charts as bandwidth_charts
from .curves import charts_of as charts_of
from .curves import exposed_charts as exposed_charts
from .curves import latency_charts as latency_charts
from .curves import rate_charts as rate_charts
from .curves import slug as slug
from .curves import throughput_charts as throughput_charts
from .findings import ClaimFinding as ClaimFinding
from .launch import COORDINATOR as COORDINATOR
from .measured import Key as Key
from .measured import MeasuredLaunch as MeasuredLaunch
from .measured import key_of as key_of
from .measured import named as named
from .mixed import mixtures as mixtures
from .summaries import Split as Split
from .summaries import summaries as summaries
from .verdicts import Verdict as Verdict
