-- The leaves of the audit trees, one sequence per tenant in the order in which heads were sealed.
--
-- A leaf says that a trajectory's event `sequence_number` had this hash when it was sealed; the hash covers all events
-- before it. What proves that leaves were not changed is not here: signed tree heads are kept outside the database.

CREATE TABLE audit_leaves (
  tenant          text        NOT NULL,
  leaf_index      bigint      NOT NULL CHECK (leaf_index >= 0),
  trajectory_id   uuid        NOT NULL,
  sequence_number bigint      NOT NULL CHECK (sequence_number >= 0),
  event_hash      bytea       NOT NULL CHECK (octet_length(event_hash) = 32),
  sealed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, leaf_index),
  UNIQUE (trajectory_id, sequence_number)
);

-- Roots of 256, 65,536, … leaves, so that neither a root nor a proof needs all leaves. They follow from the leaves.
CREATE TABLE audit_nodes (
  tenant     text     NOT NULL,
  level      smallint NOT NULL CHECK (level > 0 AND level % 8 = 0),
  node_index bigint   NOT NULL CHECK (node_index >= 0),
  hash       bytea    NOT NULL CHECK (octet_length(hash) = 32),
  PRIMARY KEY (tenant, level, node_index)
);

-- How many leaves a tenant's tree has, and its root; moved in the transaction that appends leaves.
CREATE TABLE audit_trees (
  tenant     text        PRIMARY KEY,
  size       bigint      NOT NULL CHECK (size > 0),
  root       bytea       NOT NULL CHECK (octet_length(root) = 32),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
