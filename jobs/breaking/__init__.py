"""What jobs/chaos.py breaks, and how: the calls that change files, and processes."""
