"""Plan: which samples share a pack, and in which order the packs are trained on. Functions from ints to ints."""

from .knapsack import (
    greedy_knapsack as greedy_knapsack,
    greedy_knapsack_vt_balanced as greedy_knapsack_vt_balanced,
)
from .plan import plan_bins as plan_bins
