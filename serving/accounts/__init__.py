"""Whose request it is, and whose money: teams, keys, budgets, holds and the ledger."""
