"""Models: where a policy comes from, what engines run, value heads, reward models, folders on disk."""
