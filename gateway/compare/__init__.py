"""Sends the same requests to two services and reports how their answers differ.

Control is the reference; candidate is compared with it. Each is called from outside, with its own
API key. Recorded traffic has the format that a comparison reads: HAR 1.2.
"""
