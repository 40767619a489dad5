"""Models of the seconds that exchanges and pipelines take on a fabric.

May live here: formulas of time and bytes, for settings that were never run. May not: measuring,
sessions and MPI; numbers from rows of a study are arguments.
"""
