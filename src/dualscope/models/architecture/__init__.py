"""Where an architecture keeps its parts."""
