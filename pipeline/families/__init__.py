"""What a model family is (base.py), and one small file for each."""
