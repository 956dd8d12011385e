"""Ablation grids: one experiment run with many settings and seeds, what is the same in several of them once."""
