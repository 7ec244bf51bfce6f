"""What jobs/fuzz.py damages: a module per target."""
