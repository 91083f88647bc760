"""The proof: sends random sequences of all operations to two services and compares every response.

Control is the simulator's legacy interface, written from the legacy document alone. Candidate is the gateway in
front of a simulator with an equal seed. Allowed differences are listed in ``known_differences``, each with its reason.
"""
