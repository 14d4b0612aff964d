"""What a recording may assume of a call: its arguments, and PyTorch's settings."""
