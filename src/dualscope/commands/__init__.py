"""One file a command. A command parses options, calls the library, prints."""
