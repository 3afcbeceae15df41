"""A run folder: its files, and who is computing what."""
