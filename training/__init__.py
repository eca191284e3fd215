"""Train a conductor by reinforcement learning, on the code that serves it."""
