"""Where the cells of a grid run."""
