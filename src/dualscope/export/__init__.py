"""Runs as experiment trackers keep them. Nothing here is imported before `dualscope export` asks for it."""
