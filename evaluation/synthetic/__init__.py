"""SYNTHETIC questions and workers: small programs, not language models. Wherever a figure from them is shown, it says so."""
