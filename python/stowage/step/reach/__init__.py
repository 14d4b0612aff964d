"""What a step can reach of the program: modules, optimizers, tensors, and the places that hold them."""
