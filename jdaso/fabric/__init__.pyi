"""The public names of `jdaso.fabric`: what type checkers read, and `__init__.py` when asked."""

from ._emulate.cluster import Cluster as Cluster
from ._emulate.cluster import ClusterError as ClusterError
from ._emulate.cluster import emulated_cluster as emulated_cluster
from ._model.advice import Advice as Advice
from ._model.advice import advise as advise
from ._model.exchange import Prediction as Prediction
from ._model.exchange import predict as predict
from ._model.exchange import predict_synchronous as predict_synchronous
from ._model.hybrid import Hybrid as Hybrid
from ._model.pipelines import HybridPrediction as HybridPrediction
from ._model.pipelines import predict_hybrid as predict_hybrid
from ._model.play import Played as Played
from ._model.play import Traffic as Traffic
from ._model.play import play as play
from ._model.settings import Fabric as Fabric
from ._model.settings import Training as Training
