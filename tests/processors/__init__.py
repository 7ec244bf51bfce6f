"""Processor directories for tests, one module per family: the demo's tokenizer with its tokens and configs.

They are small, so that tests are, and need no ../shared. tests/families/test_parity.py has the published ones beside
them, where these are at hand; a module says so where they are not, and it is all that the family is held to.
"""
