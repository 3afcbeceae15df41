"""How weights move: training loop, samples, trainable parameters, updates beside the weights, records."""
