"""Algorithms, one a file, and their parts."""
