"""OpenAI's Responses as a dialect."""
