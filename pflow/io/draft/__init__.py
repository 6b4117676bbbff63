"""Drafts of detector descriptions from what a podio file holds (`pflow detector`).

`collect` chooses the collections: calorimeters by the type code of their hits, by name, by links between digitised and
simulated hits, and else by geometry; tracks, truth and links by type. `measure` finds where the ECAL and HCAL begin and
how many sides their barrels have, from the positions of hits, and the field, from the curvature of particles. `draft`
puts both together, and `yaml` writes the result as a file for ``--detector`` that says behind each value whether it was
found in the file, measured or guessed, and what is left to fill in.
"""
