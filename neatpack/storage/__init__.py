"""Local paths and URIs alike: what is there, whole writes, reads by range, tables, one lock. Imports neither side."""
