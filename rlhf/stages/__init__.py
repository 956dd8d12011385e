"""The stages of an experiment: what each was run with, and which are kept, continued, taken or made."""
