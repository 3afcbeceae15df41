"""Statements over a run, without torch: summaries, evidence, the verdict and its rule."""
