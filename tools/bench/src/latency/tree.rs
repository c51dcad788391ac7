//! What the operations work on, made through the server that is measured.

use anyhow::{Result, ensure};
use curt_proto::nfs3::{
    CommitArguments, CreateArguments, CreateHow, CreateOk, DirectoryEntryPlus, LookupOk, MkdirArguments,
    NfsFh3, NfsProcedure, ReadArguments, ReadOk, ReaddirOk, Sattr, StableHow,
};

use super::calls::{listing, named, write};
use super::content;
use super::load::{BLOCK_BYTES, BLOCK_COUNT, CONNECTIONS_MAX, LISTED_NAMES, OUTSTANDING_MAX};
use super::setup_client::{SetupClient, decoded};

/// Blocks of each file: one for each slot, and one that is never read, so that no READ meets the
/// end.
const FILE_BLOCKS: usize = OUTSTANDING_MAX + 1;
/// Bytes of each file.
pub(super) const FILE_BYTES: u64 = (FILE_BLOCKS * BLOCK_BYTES) as u64;

/// A server's files.
pub(super) struct LatencyTree {
    /// The name of the directory in the export.
    pub(super) name: String,
    /// The export's root.
    root: NfsFh3,
    /// All of it.
    pub(super) directory: NfsFh3,
    /// Two files for each connection.
    pub(super) files: Vec<ConnectionFiles>,
    /// A directory of [`LISTED_NAMES`] empty files.
    pub(super) listed: NfsFh3,
    /// An empty directory, for names that are made and removed.
    pub(super) made: NfsFh3,
}

/// The files of one connection.
pub(super) struct ConnectionFiles {
    /// Read, and never written.
    pub(super) read: NfsFh3,
    /// Written.
    pub(super) written: NfsFh3,
}

/// The file that a connection reads.
pub(super) fn file_name(connection: usize) -> String {
    format!("file-{connection:02}")
}

/// The file that a connection writes.
pub(super) fn written_name(connection: usize) -> String {
    format!("written-{connection:02}")
}

/// A name in the directory that is listed.
pub(super) fn listed_name(number: usize) -> String {
    format!("name-{number:03}")
}

/// The directory of names that are listed.
pub(super) const LISTED: &str = "listed";
/// The directory of names that are made.
pub(super) const MADE: &str = "made";

impl LatencyTree {
    /// Makes it below the root of an export. What an earlier run left there under that name is an
    /// error.
    pub(super) fn make(line: &SetupClient, root: NfsFh3, name: &str) -> Result<Self> {
        let directory = make_directory(line, root, name)?;
        let listed = make_directory(line, directory, LISTED)?;
        let made = make_directory(line, directory, MADE)?;
        for number in 0..LISTED_NAMES {
            make_file(line, listed, &listed_name(number))?;
        }
        let mut files = Vec::new();
        for connection in 0..CONNECTIONS_MAX {
            let read = make_file(line, directory, &file_name(connection))?;
            let written = make_file(line, directory, &written_name(connection))?;
            for file in [read, written] {
                for block in 0..FILE_BLOCKS {
                    let data = content::block(block, 0);
                    let offset = (block * BLOCK_BYTES) as u64;
                    line.nfs(
                        NfsProcedure::Write,
                        &write(file, offset, StableHow::Unstable, &data)?,
                    )?;
                }
                let all = CommitArguments {
                    file,
                    offset: 0,
                    count: 0,
                };
                line.nfs(NfsProcedure::Commit, &all)?;
            }
            files.push(ConnectionFiles { read, written });
        }
        Ok(Self {
            name: name.to_owned(),
            root,
            directory,
            files,
            listed,
            made,
        })
    }

    /// Reads back what the slots of a connection have written, which is to be of this generation.
    pub(super) fn verify(
        &self,
        line: &SetupClient,
        connection: usize,
        slots: usize,
        generation: u64,
    ) -> Result<()> {
        for slot in 0..slots {
            let arguments = ReadArguments {
                file: self.files[connection].written,
                offset: (slot * BLOCK_BYTES) as u64,
                count: BLOCK_COUNT,
            };
            let reply = line.nfs(NfsProcedure::Read, &arguments)?;
            ensure!(
                decoded::<ReadOk<'_>>(&reply)?.data.bytes() == content::block(slot, generation),
                "block {slot} of {} is not what was written",
                written_name(connection)
            );
        }
        Ok(())
    }

    /// How many names are in the directory where names are made.
    pub(super) fn made_count(&self, line: &SetupClient) -> Result<usize> {
        let reply = line.nfs(NfsProcedure::ReaddirPlus, &listing(self.made))?;
        let listing = decoded::<ReaddirOk<'_, DirectoryEntryPlus<'_>>>(&reply)?;
        let mut count = 0;
        for entry in listing.entries {
            let name = entry?.name.bytes();
            count += usize::from(name != b"." && name != b"..");
        }
        Ok(count)
    }

    /// Removes it again.
    pub(super) fn remove(&self, line: &SetupClient) -> Result<()> {
        for number in 0..LISTED_NAMES {
            remove_file(line, self.listed, &listed_name(number))?;
        }
        for connection in 0..CONNECTIONS_MAX {
            remove_file(line, self.directory, &file_name(connection))?;
            remove_file(line, self.directory, &written_name(connection))?;
        }
        for name in [LISTED, MADE] {
            line.nfs(NfsProcedure::Rmdir, &named(self.directory, name.as_bytes())?)?;
        }
        line.nfs(NfsProcedure::Rmdir, &named(self.root, self.name.as_bytes())?)?;
        Ok(())
    }
}

pub(super) fn look_up(line: &SetupClient, directory: NfsFh3, name: &str) -> Result<NfsFh3> {
    let reply = line.nfs(NfsProcedure::Lookup, &named(directory, name.as_bytes())?)?;
    Ok(decoded::<LookupOk>(&reply)?.object)
}

fn make_directory(line: &SetupClient, directory: NfsFh3, name: &str) -> Result<NfsFh3> {
    let arguments = MkdirArguments {
        place: named(directory, name.as_bytes())?,
        attributes: Sattr {
            mode: Some(0o755),
            ..Sattr::default()
        },
    };
    let reply = line.nfs(NfsProcedure::Mkdir, &arguments)?;
    made(line, directory, name, &reply)
}

pub(super) fn make_file(line: &SetupClient, directory: NfsFh3, name: &str) -> Result<NfsFh3> {
    let how = CreateHow::Guarded(Sattr {
        mode: Some(0o644),
        ..Sattr::default()
    });
    let place = named(directory, name.as_bytes())?;
    let reply = line.nfs(NfsProcedure::Create, &CreateArguments { place, how })?;
    made(line, directory, name, &reply)
}

pub(super) fn remove_file(line: &SetupClient, directory: NfsFh3, name: &str) -> Result<()> {
    line.nfs(NfsProcedure::Remove, &named(directory, name.as_bytes())?)
        .map(drop)
}

fn made(line: &SetupClient, directory: NfsFh3, name: &str, reply: &[u8]) -> Result<NfsFh3> {
    match decoded::<CreateOk>(reply)?.object {
        Some(handle) => Ok(handle),
        // A server need not tell it (RFC 1813 section 3.3.8).
        None => look_up(line, directory, name),
    }
}
