//! The NFS client: inodes and what is known of them, and the plans that ask for the rest.
