"""Trained models as ONNX files, for inference without Python: two graphs and one text beside them.

``encoder.onnx`` reads the source tokens of events and gives the keys and values of their memory, one pair a decoder
layer. ``decoder_step.onnx`` reads one particle of each event, the memory, and the keys and values of the particles
before it, and gives what the next particle is. ``tokens.json`` holds all else: how features are made of hits and tracks
and normalised, the vocabularies, what ends a sentence, names, shapes and types of all tensors. The loop, in words:

1. Make features of an event's hits (and tracks), pad the events of a batch to one length, and run the encoder, once.
2. Begin with a past of length 0 and, as the last token of each event, bos: kind 1, everything else 0.
3. Run the step. An event has ended if the most probable class of the output named in ``end`` says so. Else its next
   particle has the most probable charge and |PDG| among the physical classes, and the energy and direction as given.
4. That particle is the next last token (kind 3), and each ``present_*`` output is the ``past_*`` input of the same
   number. Go on until all events have ended or ``max_particles`` are written. Events that have ended may stay in the
   batch or leave it.

The same text, field by field, is in ``tokens.json`` under ``how_to``.
"""
