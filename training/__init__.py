"""Reinforcement learning of a conductor, on the code that serves it."""
