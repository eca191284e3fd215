"""Accounts: teams, API keys, policies, rate limits, budgets, holds and the ledger."""
