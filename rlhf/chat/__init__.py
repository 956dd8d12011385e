"""Talking to what a run has left, in a terminal or through a pipe.

Nothing is imported here, so that ``--help`` answers at once.
"""
