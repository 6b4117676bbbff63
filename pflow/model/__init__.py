"""The networks. Knows torch and nothing else of pflow; sizes and ids come in as arguments.

`api.py` is the contract of all models, `common` holds shared parts. `pointing` is the architecture of the models that
come with pflow, `translation` that of the first paper.
"""
