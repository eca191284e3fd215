"""LoRA adapters: how they are named, which can be served, how a replica fetches one."""
