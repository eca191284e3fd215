"""Who may call, and on whose account: API keys, teams, and what they may do."""
