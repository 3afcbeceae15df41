"""``python -m dualscope``: the same as the command."""

from dualscope.cli import main

main()
