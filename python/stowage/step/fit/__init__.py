"""Whether a step fits a limit, without its memory: the largest batch, the longest sequence."""
