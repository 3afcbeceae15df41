"""A model's files: where they are, what they hash to, and pickled ones made into safetensors."""
