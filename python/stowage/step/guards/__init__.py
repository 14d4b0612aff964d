"""Guards: what a step's Python can read, watched so that a plan serves only where nothing of it has changed."""
