//! ONC RPC (RFC 5531): records, calls, replies, credentials; the client's connections and the server's threads.
