"""A step's function in two halves: what a plan carries out, and the Python behind it, which runs in every call."""
