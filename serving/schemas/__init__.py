"""JSON Schemas from clients: their checks, their translation for each provider, and checks of answers."""
