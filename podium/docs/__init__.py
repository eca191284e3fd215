"""Documentation: the parts of pages that are generated from the code, and the static site."""
