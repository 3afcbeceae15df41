"""Learners that read hidden states or write into them: probe, kernel, task vectors, function vectors."""
