"""How learners respond when the demonstrations say something else."""
