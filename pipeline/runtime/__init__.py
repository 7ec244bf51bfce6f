"""What runs a job and keeps its files: engine.py (Ray or in-process), storage.py, journal.py (rows that crash)."""
