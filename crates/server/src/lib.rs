//! The NFS server: dispatch, handles, exports, identities and one file per procedure.
