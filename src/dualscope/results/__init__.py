"""What users hold in Python and notebooks: compare() and its result."""
