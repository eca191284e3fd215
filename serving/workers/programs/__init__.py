"""Workers that are programs: `kind: python`, with a factory such as `serving.workers.programs.calculator:Calculator`.

`program` has their base class and reads questions. Each worker is one module, and the modules without a worker hold
rules or data of one. Packages are loaded at the first question that needs them.
"""
