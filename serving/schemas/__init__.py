"""JSON Schemas from clients: checks of the schemas and of answers, and their translation for each provider."""
