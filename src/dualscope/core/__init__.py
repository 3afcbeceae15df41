"""The torch-free ground that everything stands on: errors, registries, config files, atomic files, statistics."""
