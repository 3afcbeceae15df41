"""Learners that descend: plain GD, all weights, layer-causal, clipped, matched, linearised, tuned."""
