"""Looking into a finished output: pages, tables and pictures."""
