"""Data: from files, the hub or the built-in world to batches of token ids."""
