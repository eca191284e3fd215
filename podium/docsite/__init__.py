"""The documentation as a static site: `make site`."""
