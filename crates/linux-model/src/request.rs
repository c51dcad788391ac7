//! Requests, each with its cause in Linux.

/// A request and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinuxRequest {
    /// GETATTR at an open (close-to-open).
    OpenCheck,
    /// GETATTR of a directory, to validate its names.
    NameCheck,
    /// GETATTR because attributes have expired.
    AttributesExpired,
    /// GETATTR of a directory, to validate its listing.
    ListingCheck,
    /// LOOKUP of a name that is not cached.
    FirstUse,
    /// LOOKUP of a cached name whose directory has changed, or that an option does not allow to
    /// use.
    NameAgain,
    /// ACCESS.
    Access,
    /// READLINK.
    LinkTarget,
    /// READ for a waiting reader.
    DataRead,
    /// READ ahead of a reader.
    ReadAhead,
    /// WRITE.
    Write,
    /// COMMIT.
    Commit,
    /// SETATTR.
    SetAttributes,
    /// CREATE.
    CreateFile,
    /// MKDIR.
    CreateDirectory,
    /// SYMLINK.
    CreateLink,
    /// MKNOD.
    CreateNode,
    /// LINK.
    HardLink,
    /// REMOVE.
    Remove,
    /// RMDIR.
    RemoveDirectory,
    /// RENAME.
    Rename,
    /// READDIRPLUS.
    ListPlus,
    /// READDIR.
    ListPlain,
    /// FSSTAT.
    Statfs,
}

impl LinuxRequest {
    /// The number of the NFSv3 procedure (RFC 1813 section 3).
    #[must_use]
    pub const fn procedure(self) -> u32 {
        match self {
            Self::OpenCheck | Self::NameCheck | Self::AttributesExpired | Self::ListingCheck => 1,
            Self::SetAttributes => 2,
            Self::FirstUse | Self::NameAgain => 3,
            Self::Access => 4,
            Self::LinkTarget => 5,
            Self::DataRead | Self::ReadAhead => 6,
            Self::Write => 7,
            Self::CreateFile => 8,
            Self::CreateDirectory => 9,
            Self::CreateLink => 10,
            Self::CreateNode => 11,
            Self::Remove => 12,
            Self::RemoveDirectory => 13,
            Self::Rename => 14,
            Self::HardLink => 15,
            Self::ListPlain => 16,
            Self::ListPlus => 17,
            Self::Statfs => 18,
            Self::Commit => 21,
        }
    }
}
