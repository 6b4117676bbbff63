"""Drafts of detector descriptions from what a podio file holds (`pflow detector`).

`collect` chooses the collections: calorimeters by the type code of their hits, by name, by links between digitised
and simulated hits, and else by geometry (`calorimeters`); tracks, truth and links by type. `measure_calorimeters`
finds where ECAL and HCAL begin, how many sides their barrels have, and which bits of cell ids count layers, from the
positions of hits; with `measure_time_window` also scale, threshold and time window of the digitisation, where a file
has hits before and after it. `measure_field` takes the field from the curvature of particles. `draft` puts all
together, and `yaml` writes the result as a file for ``--detector`` that says behind each value whether it was found
in the file, measured or guessed, and what is left to fill in.

>>> from pflow.io.draft.draft import draft_detector
>>> draft = draft_detector("mine.edm4hep.root")  # doctest: +SKIP
>>> draft.detector.b_field, draft.notes["b_field"]  # doctest: +SKIP
"""
