"""Runs on this replica: who may begin one, what each holds until its end, and where an earlier request is found."""
