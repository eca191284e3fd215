"""LoRA adapters: names, compatibility with an engine, and fetching."""
