"""A training step whose tensors are split over a mesh of ranks."""
