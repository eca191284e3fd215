"""Measuring answers: questions, graders, strategies side by side, and the report."""
