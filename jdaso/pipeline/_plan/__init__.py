"""From a loss to stages: traced, priced, cut; nothing here runs on several nodes.

May live here: facts about a model before its first step. May not: messages, and MPI.
"""
