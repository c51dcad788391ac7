//! The words of the NFS protocols: wire types and one table each for procedures and statuses.
