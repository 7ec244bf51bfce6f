"""Processor directories for tests, one module per family: the demo's tokenizer with its tokens and configs."""
