"""Where and how models run: training, sampling, checkpoints."""
