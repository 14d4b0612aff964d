"""All that leans on PyTorch's private interfaces, or is built for the torch that is there."""
