"""What is to be learned in context.

data        linear functions, asked at one query; generators for every seed, stream and step
processes   Gaussian processes, linear dynamics
prompts     classes of functions, asked at every point: x_1, y_1, x_2, ...
shifts      prompts unlike those of training
"""
