"""Training of a model: the step, the loop, the optimizers, saving and evaluation."""
