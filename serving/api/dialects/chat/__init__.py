"""OpenAI's Chat Completions as a dialect."""
