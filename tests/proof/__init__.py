"""The proof: sends random sequences of all operations to two services and compares every response.

Control is the simulator's legacy interface, written from the legacy document alone. Candidate is the gateway in
front of a simulator with an equal seed. Differences that are allowed are listed in ``named``, each with its reason.
"""
