"""Many runs that differ on purpose, and what they show: ``python -m rlhf.grid``."""
