"""Fabrics: clusters emulated on one machine, and a model of those that are not there."""

from ._emulated import Cluster as Cluster
from ._emulated import ClusterError as ClusterError
from ._emulated import emulated_cluster as emulated_cluster
from ._model import Advice as Advice
from ._model import Fabric as Fabric
from ._model import Prediction as Prediction
from ._model import Training as Training
from ._model import advise as advise
from ._model import predict as predict
from ._model import predict_synchronous as predict_synchronous
