"""Evaluation of cost models: how long a step, a swap or a recomputation takes, and how many KV blocks a card
holds.

Start at ``sim.costs.load.load_cost_model``. Standard library only.
"""
