"""Fabrics: clusters emulated on one machine, and a model of those that are not there."""

from ._emulated import Cluster as Cluster
from ._emulated import ClusterError as ClusterError
from ._emulated import emulated_cluster as emulated_cluster
from ._hybrid import Hybrid as Hybrid
from ._model import Advice as Advice
from ._model import Fabric as Fabric
from ._model import Prediction as Prediction
from ._model import Training as Training
from ._model import advise as advise
from ._model import predict as predict
from ._model import predict_synchronous as predict_synchronous
from ._pipelines import HybridPrediction as HybridPrediction
from ._pipelines import predict_hybrid as predict_hybrid
from ._played import Played as Played
from ._played import Traffic as Traffic
from ._played import play as play
