//! The procedures of NFSv3: one table of number and name (RFC 1813 section 3).

use core::fmt;

macro_rules! procedures {
    ($($variant:ident = $number:literal, $name:literal;)*) => {
        /// A procedure of the program.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum NfsProcedure {
            $(#[doc = concat!("NFSPROC3_", $name, ".")] $variant = $number,)*
        }

        impl NfsProcedure {
            /// Every procedure, in the order of their numbers, which are their indices.
            pub const ALL: [Self; 22] = [$(Self::$variant),*];

            /// The RFC's name, without its prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The procedure with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

procedures! {
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

impl NfsProcedure {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for NfsProcedure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
