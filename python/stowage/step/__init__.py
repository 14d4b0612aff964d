"""A training step of the user's: recorded, planned, executed, and watched so that its numbers stay those of eager."""
