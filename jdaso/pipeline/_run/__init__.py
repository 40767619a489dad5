"""From stages to steps: compiled passes, and messages between the ranks of a replica.

May live here: the work of a step, given the plan and the schedule. May not: cuts of a model
(`_plan`), and updates of parameters (`_optimizer`).
"""
