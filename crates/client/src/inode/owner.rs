//! The view of an inode that the data half has.

use std::{ops::Range, time::Instant};

use curt_types::{Attributes, FileHandle, Wcc, WriteVerifier};

use super::{Inode, InodeFlag};
use crate::{
    data::{DataOwner, FileData},
    event_fields::InodeEventFields,
};

impl DataOwner for Inode {
    fn handle(&self) -> &FileHandle {
        &self.handle
    }

    fn data(&self) -> &FileData {
        self.data()
    }

    fn fresh_size(&self) -> Option<u64> {
        let now = self.core().now();
        let options = self.core().options();
        // The reader's start time does not matter: read(2) uses attributes until they expire.
        self.lock().fresh_size(now, &options)
    }

    fn last_size(&self) -> Option<u64> {
        self.lock().attributes.newest().map(|known| known.size)
    }

    fn size_max(&self) -> u64 {
        self.core().size_max(self.fsid())
    }

    fn absorb_read(&self, attributes: Option<&Attributes>, sent_at: Instant) {
        if let Some(attributes) = attributes {
            let _ = self.absorb(attributes, self.core().moment(sent_at));
        }
    }

    fn on_reread(&self, range: &Range<u64>) {
        let size = self.attributes().map_or(0, |known| known.size);
        // A short reply makes the kernel reduce its size, unless the kernel is notified first.
        let is_short = range.end > size;
        if let Some(observer) = &self.core().observer
            && !(is_short && self.has(InodeFlag::Shrunk))
        {
            observer.read_found_change(self.id, range.clone(), size);
        }
    }

    fn begin_write(&self) {
        self.begin_mutation();
    }

    fn absorb_write(&self, wcc: &Wcc, sent_at: Instant) {
        let _ = self.end_mutation(wcc, self.core().moment(sent_at));
    }

    fn note_verifier(&self, verifier: WriteVerifier) {
        self.core().note_verifier(verifier);
    }

    fn number(&self) -> u64 {
        self.id.0
    }

    fn event_fields(&self) -> InodeEventFields {
        Self::event_fields(self)
    }

    fn label(&self) -> String {
        match self.attributes() {
            Some(attributes) => format!("inode {}", attributes.fileid),
            None => format!("object {}", self.id.0),
        }
    }
}
