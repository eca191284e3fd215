"""SYNTHETIC questions and workers: small programs, not language models. Reports label their figures so."""
