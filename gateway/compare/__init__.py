"""Two services asked the same, and how their answers differ.

Control is the one that is right, candidate the one to be compared with it; each is asked from
outside, with a key of its own. Traffic is recorded in the form that is compared: HAR 1.2 (``scrub``).
"""
