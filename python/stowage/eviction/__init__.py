"""A byte limit around any training loop: what leaves memory, and how it comes back."""
