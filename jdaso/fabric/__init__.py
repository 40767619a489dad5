"""Fabrics: clusters emulated on one machine, with links of known speed."""

from ._emulated import Cluster, ClusterError, emulated_cluster

__all__ = ["Cluster", "ClusterError", "emulated_cluster"]
