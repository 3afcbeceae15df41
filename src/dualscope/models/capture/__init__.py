"""What a forward pass leaves behind: hooks, the attention kernel, adapters for families that bypass it."""
