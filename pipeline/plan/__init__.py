"""Plan: which samples share a pack, and in which order the packs are trained on. Functions from ints to ints."""

from neatpack.pipeline.plan.knapsack import greedy_knapsack, greedy_knapsack_vt_balanced
from neatpack.pipeline.plan.plan import plan_bins

__all__ = ["greedy_knapsack", "greedy_knapsack_vt_balanced", "plan_bins"]
