"""Ceilings: what may look at in-context learning's own traces, and how well anything of its kind could do."""
