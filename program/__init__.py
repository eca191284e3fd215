"""What the command-line programs of this repository share: types of options, percentiles, the machine that a
figure was measured on, the look of plots.

Knows nothing of models, servers or questions, and imports none of the other packages.
"""
