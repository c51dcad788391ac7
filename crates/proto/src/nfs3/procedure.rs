//! The procedures of NFSv3: one table of number and name (RFC 1813 section 3).

use core::fmt;

use crate::operation::procedures;

procedures! {
    /// A procedure of the program.
    NfsProcedure, "NFSPROC3_";
    Null = 0, "NULL";
    Getattr = 1, "GETATTR";
    Setattr = 2, "SETATTR";
    Lookup = 3, "LOOKUP";
    Access = 4, "ACCESS";
    Readlink = 5, "READLINK";
    Read = 6, "READ";
    Write = 7, "WRITE";
    Create = 8, "CREATE";
    Mkdir = 9, "MKDIR";
    Symlink = 10, "SYMLINK";
    Mknod = 11, "MKNOD";
    Remove = 12, "REMOVE";
    Rmdir = 13, "RMDIR";
    Rename = 14, "RENAME";
    Link = 15, "LINK";
    Readdir = 16, "READDIR";
    ReaddirPlus = 17, "READDIRPLUS";
    Fsstat = 18, "FSSTAT";
    Fsinfo = 19, "FSINFO";
    Pathconf = 20, "PATHCONF";
    Commit = 21, "COMMIT";
}

impl fmt::Display for NfsProcedure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
