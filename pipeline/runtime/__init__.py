"""What runs a job and keeps its files.

engine.py (Ray or in-process), journal.py (rows that crash), again.py (jobs that survive it), storage.py.
"""
