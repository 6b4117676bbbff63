"""The networks. They know tensors, not events or files; sizes and ids come in as arguments.

`api.py` is the contract of all models; they share `decode.py` and `transformer.py`. `pointing` is the architecture of
the models that come with pflow, `translation` the first paper's.
"""
