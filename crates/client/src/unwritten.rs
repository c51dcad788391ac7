//! Lists by path what is not on the server's disk yet, for the log of a mount that ends.

use std::time::Duration;

use crate::{client::Client, data::UnsentData, identity::InodeId};

/// Components of a path that is told: names can be kept in a circle while directories are moved
/// about.
const DEPTH_MAX: usize = 256;

impl Client {
    /// Writes all that is unwritten, for at most `limit`; returns what had to be given up. Nothing
    /// can be written afterwards.
    pub fn sync_all(&self, limit: Duration) -> Vec<UnsentData> {
        self.name_by_paths(self.core.data.sync_all(limit))
    }

    /// Writes what is unwritten now, for at most `limit`. Unlike after [`Client::sync_all`],
    /// everything goes on.
    pub fn write_all(&self, limit: Duration) {
        self.core.data.write_all(limit);
    }

    /// What is not on the server's disk at this moment.
    #[must_use]
    pub fn unwritten(&self) -> Vec<UnsentData> {
        self.name_by_paths(self.core.data.unwritten())
    }

    fn name_by_paths(&self, files: Vec<UnsentData>) -> Vec<UnsentData> {
        let named = files.into_iter().map(|file| {
            let inode = self.core.registry.inode(&self.core, &file.handle);
            match self.path(inode.id()) {
                Some(path) => UnsentData {
                    label: path.escape_ascii().to_string(),
                    ..file
                },
                None => file,
            }
        });
        named.collect()
    }

    /// A path from the mount's root to an object, as far as the names on it are still known.
    #[must_use]
    pub fn path(&self, id: InodeId) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = id;
        while at != self.root() {
            let (directory, name) = self.dentries.origin(at)?;
            names.push(name);
            at = directory;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some([b"/".as_slice(), &names.join(&b'/')].concat())
    }
}
