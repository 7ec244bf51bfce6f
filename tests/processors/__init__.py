"""Processor directories for tests, one module per family: the demo's tokenizer with that family's tokens and configs."""
