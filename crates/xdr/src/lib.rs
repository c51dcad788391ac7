//! XDR (RFC 4506): decode from a borrowed slice, encode into a reused buffer, limits from the types.
