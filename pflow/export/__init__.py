"""Trained models as ONNX files, for inference without Python: graphs and a description.

Pointing networks have three, from hits and tracks to particles: `pflow.export.pointing`. Translation networks have two:
``encoder.onnx`` takes the source tokens of events and gives keys and values of the encoder's output, a pair for each
decoder layer. ``decoder_step.onnx`` takes the last particle of each event, these keys and values, and those of the
earlier particles, and predicts the next particle. ``tokens.json`` holds the rest: features and their normalisation,
vocabularies, the class that ends the sequence, names, shapes and types of all tensors, and under ``how_to`` the
decoding loop step by step (`pflow.export.description`).
"""
