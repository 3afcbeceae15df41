"""Reading queries: batches, the shared prefix, and smaller batches where memory is short."""
