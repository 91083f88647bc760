"""The legacy service while it lives: which requests go there, each once, and which are asked at both."""
