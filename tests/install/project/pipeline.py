"""Somebody's own pipeline."""

import loaders

STEPS_PER_PRINT = 2 * loaders.BATCH_SIZE
