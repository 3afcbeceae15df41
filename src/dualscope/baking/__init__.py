"""The context baked into weights: LoRA adapters that stand in for demonstrations."""
