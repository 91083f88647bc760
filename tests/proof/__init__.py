"""The proof: random sequences of all operations, asked of two worlds, and every answer compared.

One world is the simulator's legacy face, written from the legacy document alone; the other the
gateway, in front of a simulator's current face with an equal seed. What may differ all the same is
in ``named``, each with its reason.
"""
