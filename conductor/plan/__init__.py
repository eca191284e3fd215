"""Plans: their data types, parsers and grammars, and the prompts for conductors and workers."""
