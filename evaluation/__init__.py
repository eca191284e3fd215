"""Compare strategies for answering questions: question sets, graders, strategies and the report."""
