"""Documentation as a static site, built by `make site`."""
