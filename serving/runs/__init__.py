"""The runs of one router: under way, kept, counted."""
