"""The explorer: a local page to type demonstrations into, and see both learners at work."""
