"""Evidence: a Merkle tree over the heads of all trajectories, signed tree heads outside the database, proofs."""
