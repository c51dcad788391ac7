//! One pass through a directory: the pages that were read and where the reader is.
//!
//! Owns positions. Must not send anything.

use std::{collections::HashSet, sync::Arc};

use curt_policy::{NameLabel, Ticket};
use curt_proto::nfs3::CookieVerifier;

use super::{NAMES_KEPT_MAX, Page};

/// Where the next name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) page: usize,
    pub(super) name: usize,
}

/// What an open directory has read.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Pages in order, each following the one before; from the beginning if `is_whole`.
    pub(super) pages: Vec<Arc<Page>>,
    names: usize,
    /// The pages begin at the directory's beginning.
    pub(super) is_whole: bool,
    /// The pages were taken from a kept listing: nothing is to be learned from them.
    pub(super) is_kept: bool,
    /// Where the last call ended, and with which cookie.
    last: Option<(u64, Position)>,
    /// Names told before the server refused a cookie and the pass had to start again.
    pub(super) told: Option<HashSet<Box<[u8]>>>,
    /// Bytes to ask for next.
    pub(super) size: u32,
    /// By what the first page was learned, as long as all others were learned by the same.
    pub(super) label: Option<NameLabel>,
    /// Which changes of ours had been made when the first page was asked for.
    pub(super) ticket: Option<Ticket>,
}

impl Pass {
    /// Starts at the directory's beginning.
    pub(super) fn restart(&mut self) {
        *self = Self {
            is_whole: true,
            ..Self::default()
        };
    }

    /// Takes over a kept listing.
    pub(super) fn take_kept(&mut self, pages: &[Arc<Page>]) {
        self.restart();
        self.pages = pages.to_vec();
        self.is_kept = true;
    }

    /// Where the name after `cookie` is, if the pages tell.
    pub(super) fn find(&self, cookie: u64) -> Option<Position> {
        if let Some((_, position)) = self.last.filter(|(last, _)| *last == cookie) {
            return Some(position);
        }
        if cookie == 0 {
            return self.is_whole.then_some(Position { page: 0, name: 0 });
        }
        for (page, listed) in self.pages.iter().enumerate() {
            if listed.after == cookie {
                return Some(Position { page, name: 0 });
            }
            if let Some(name) = listed.names.iter().position(|entry| entry.cookie == cookie) {
                return Some(Position { page, name: name + 1 });
            }
        }
        None
    }

    /// The reader was told up to `cookie`, and goes on at `position`.
    pub(super) fn remember(&mut self, cookie: u64, position: Position) {
        self.last = Some((cookie, position));
    }

    /// The cookie and verifier by which the server is asked for what follows the pages.
    pub(super) fn end(&self) -> (u64, CookieVerifier) {
        match self.pages.last() {
            Some(page) => (
                page.names.last().map_or(page.after, |entry| entry.cookie),
                page.verifier,
            ),
            None => (0, CookieVerifier::default()),
        }
    }

    /// Whether the last page is the directory's last.
    pub(super) fn is_complete(&self) -> bool {
        self.pages.last().is_some_and(|page| page.is_last)
    }

    /// Appends a page. When too many names are kept, those before it are let go: the pass cannot start again then.
    /// Returns the index of the page.
    pub(super) fn push(&mut self, page: Arc<Page>) -> usize {
        if self.names + page.names.len() > NAMES_KEPT_MAX && !self.pages.is_empty() {
            let kept = self.pages.split_off(self.pages.len() - 1);
            self.pages = kept;
            self.names = self.pages.iter().map(|page| page.names.len()).sum();
            self.is_whole = false;
            self.last = None;
        }
        self.names += page.names.len();
        self.pages.push(page);
        self.pages.len() - 1
    }

    /// The reader went to `cookie`, which no page knows: the pages from there on are read anew.
    pub(super) fn jump(&mut self, cookie: u64, verifier: CookieVerifier) {
        let size = self.size;
        let nothing = Page {
            after: cookie,
            names: Vec::new(),
            verifier,
            is_last: false,
        };
        *self = Self {
            pages: vec![Arc::new(nothing)],
            size,
            ..Self::default()
        };
    }

    /// The server refused the cookie at the end of the pages: the pass starts again, without the names that were told. False
    /// if it did so before, or does not know all that was told.
    pub(super) fn start_again(&mut self, cookie: u64, at: Position) -> bool {
        if !self.is_whole || self.told.is_some() {
            return false;
        }
        let told = self
            .pages
            .iter()
            .take(at.page + 1)
            .flat_map(|page| page.names.iter());
        let told = told.map(|entry| entry.name.clone()).collect();
        let size = self.size;
        *self = Self {
            told: Some(told),
            size,
            is_whole: true,
            ..Self::default()
        };
        // The reader's cookie is of the former pass: it stands for the beginning of this one.
        self.last = Some((cookie, Position { page: 0, name: 0 }));
        true
    }
}
