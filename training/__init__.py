"""Training a model: the step, the loop, its optimizers, saving and evaluation."""
