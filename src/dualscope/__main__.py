"""``python -m dualscope``, and the command itself: what is imported is imported where Ctrl-C ends in words."""

import sys

from dualscope._start import listen


def main() -> None:
    try:
        listen()
        from dualscope.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
