"""A model that can be asked one thing: messages, the port, usage and price."""
