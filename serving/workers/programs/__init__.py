"""Workers that are programs: `kind: python`, with a factory such as `serving.workers.programs.calculator:Calculator`.

`program` has the base class of these workers, and reads questions. Each worker is a module. Modules without a
worker contain rules or data of one. Packages are loaded when the first question needs them.
"""
