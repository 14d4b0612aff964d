"""Why a training ran out of memory, from what PyTorch's allocator noted: read, find the cause, say what fits."""
