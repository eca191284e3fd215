"""Workers that are programs: `kind: python`, with a factory such as `serving.workers.programs.calculator:Calculator`.

`program` has the base class of these workers, and reads questions. Each worker is a module. Modules without a
worker contain rules or data of one. Packages are loaded when the first question needs them.

Sources and licences of the data files:

* `wordnet.tsv.xz`, `definitions.tsv.xz`, `names.tsv.xz`: extracts of WordNet 3.0 of Princeton University, under `wordnet.LICENSE`. `wordnet.py` and
  `names.py` write them.
* `rhymes.txt.xz`: extract of the CMU Pronouncing Dictionary, under `rhymes.LICENSE` (BSD). `rhymes.py` writes it.
* `almanac.txt`, `phrasebook.txt`, `sayings.txt`, `thesaurus.txt`: written for Podium, under its licence (Apache 2.0).
"""
