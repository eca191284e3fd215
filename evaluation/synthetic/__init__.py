"""SYNTHETIC questions and workers: small programs, not language models. Every figure from them says so."""
