"""From events to numbers and back: vocabularies, scales, order, encode and decode."""
